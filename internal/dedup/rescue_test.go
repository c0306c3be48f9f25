package dedup

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

func (f *fixture) register() {
	f.t.Helper()
	if err := f.Register(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) rescue() {
	f.t.Helper()
	if err := f.Rescue(f.t.Context()); err != nil {
		f.t.Errorf("rescue: %v", err)
	}
}

// B110, B111: what no broker brought reaches exactly the consumers that have no record of it, once, and is then left alone.
func TestWhatTheBrokerLostIsDeliveredToWhoHasNoRecord(t *testing.T) {
	f := newFixture(t)
	f.Consumers = append(f.Consumers, f.consumer("coupons"), Consumer{Name: "refunds", Topics: []string{"refund.succeeded"}, Handle: f.consumer("refunds").Handle})
	f.register()
	list := f.owe("m1", "m2")
	f.deliver(list[0]) // to points
	f.advance(outbox.LookAfter - time.Microsecond)
	f.rescue()
	f.wantCount(1, "SELECT COUNT(*) FROM effect")
	f.advance(time.Microsecond)
	failed := make([]error, 5) // of five instances one looks
	testenv.Together(len(failed), func(i int) { failed[i] = f.Rescue(t.Context()) })
	if err := errors.Join(failed...); err != nil {
		t.Errorf("rescue: %v", err)
	}
	f.wantCount(4, "SELECT COUNT(*) FROM effect")
	f.wantCount(4, "SELECT COUNT(DISTINCT consumer, msg_id) FROM effect WHERE consumer IN ('points', 'coupons')")
	for _, c := range f.Consumers {
		if n := hits(f.Service, c, metrics.Replayed); n != 0 {
			t.Errorf("%s was given %v messages again", c.Name, n)
		}
	}
	f.advance(lookAgain)
	f.rescue()
	f.wantCount(4, "SELECT COUNT(*) FROM effect")
	f.wantCount(2, "SELECT COUNT(*) FROM t_outbox WHERE next_look_at IS NULL")
}

// A message that waits or is dead is looked at again until it is finished, and keeps no other waiting: 500 dead letters here.
func TestDeadLettersKeepNoOtherMessageWaiting(t *testing.T) {
	f := newFixture(t)
	f.register()
	var ids []string
	for i := range 500 {
		ids = append(ids, fmt.Sprintf("dead%d", i))
	}
	f.owe(ids...)
	if _, err := f.DB.Exec(`INSERT INTO t_message_dedup (consumer, msg_id, topic, msg_key, status, tries, create_time)
		SELECT 'points', msg_id, topic, partition_key, ?, ?, create_time FROM t_outbox`, Dead, MaxTries); err != nil {
		t.Fatal(err)
	}
	f.advance(time.Second)
	fresh := f.owe("fresh")[0]
	f.advance(outbox.LookAfter)
	f.rescue()
	f.wantOnce(fresh)
	f.wantCount(500, "SELECT COUNT(*) FROM t_outbox WHERE msg_id LIKE 'dead%' AND next_look_at = ?", f.clock().Add(lookAgain))
	f.wantTries("dead0", 0)
	if _, err := f.DB.Exec("UPDATE t_message_dedup SET status = ? WHERE msg_id = 'dead7'", Discarded); err != nil {
		t.Fatal(err)
	}
	f.advance(lookAgain)
	f.rescue()
	f.wantCount(2, "SELECT COUNT(*) FROM t_outbox WHERE next_look_at IS NULL AND msg_id IN ('dead7', 'fresh')")
	f.wantCount(499, "SELECT COUNT(*) FROM t_outbox WHERE next_look_at IS NOT NULL")
}

// A message that fails in the rescue is recorded and blocks no other; Retry brings it, and the rescue sees it through.
func TestAFailureInTheRescueWaitsForRetry(t *testing.T) {
	f := newFixture(t)
	f.register()
	list := f.owe("poison", "good")
	f.failing(func(m outbox.Stored) error {
		if m.ID == "poison" {
			return errors.New("broken")
		}
		return nil
	})
	f.advance(outbox.LookAfter)
	f.rescue()
	f.wantOnce(list[1])
	f.advance(lookAgain)
	f.rescue() // leaves it to Retry
	f.wantTries("poison", 1)
	f.wantCount(1, "SELECT COUNT(*) FROM t_outbox WHERE next_look_at IS NOT NULL")
	f.failing(nil)
	f.retry()
	f.wantOnce(list[0])
	f.advance(lookAgain)
	f.rescue()
	f.wantCount(2, "SELECT COUNT(*) FROM t_outbox WHERE next_look_at IS NULL")
}

// Two instances that read the same messages do not both have them: the later claim finds its message moved, and looks again.
func TestOneInstanceLooksAtAMessage(t *testing.T) {
	f := newFixture(t)
	f.owe("m1", "m2")
	f.advance(outbox.LookAfter)
	proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
	late := testenv.OpenDB(t, dsn)
	gate := testenv.NewGate(t)
	proxy.On(testenv.Contains("UPDATE t_outbox SET next_look_at"), 1, testenv.Hold(gate))
	type claim struct {
		ids []int64
		err error
	}
	done := make(chan claim)
	go func() {
		ids, err := claimLooks(context.Background(), late, f.clock())
		done <- claim{ids, err}
	}()
	gate.WaitEntered(t, 1)
	ids, err := claimLooks(t.Context(), f.DB, f.clock())
	gate.Open()
	if got := <-done; len(ids) != 2 || len(got.ids) != 0 || errors.Join(err, got.err) != nil {
		t.Errorf("the first has %v, %v, the later one %v, %v", ids, err, got.ids, got.err)
	}
}

// A message is settled when the last of its consumers is finished, whichever that is.
func TestAMessageIsSettledByTheLastOfItsConsumers(t *testing.T) {
	f := newFixture(t)
	f.owe("m1", "m2", "m3")
	owed := []debt{{id: 1, finished: true}, {id: 1}, {id: 2}, {id: 2, finished: true}, {id: 3, finished: true}, {id: 3, finished: true}}
	if err := settle(t.Context(), f.DB, []int64{1, 2, 3}, owed); err != nil {
		t.Fatal(err)
	}
	f.wantCount(1, "SELECT COUNT(*) FROM t_outbox WHERE next_look_at IS NULL AND msg_id = 'm3'")
	f.wantCount(2, "SELECT COUNT(*) FROM t_outbox WHERE next_look_at IS NOT NULL")
}

// A rescue that died between its claim and the delivery is made good for.
func TestARescueThatDiedIsRepeated(t *testing.T) {
	f := newFixture(t)
	f.register()
	m := f.owe("m1")[0]
	f.advance(outbox.LookAfter)
	if ids, err := claimLooks(t.Context(), f.DB, f.clock()); err != nil || len(ids) != 1 {
		t.Fatal(ids, err)
	}
	f.rescue()
	f.wantCount(0, "SELECT COUNT(*) FROM effect")
	f.advance(lookAgain)
	f.rescue()
	f.wantOnce(m)
}

// A consumer is owed what came after it was registered; starting again changes nothing.
func TestAConsumerIsOwedNothingOfBefore(t *testing.T) {
	f := newFixture(t)
	f.register()
	f.owe("before")
	f.advance(time.Microsecond)
	f.Consumers = append(f.Consumers, f.consumer("coupons"))
	f.register()
	f.owe("after")
	f.advance(time.Hour)
	f.register() // a restart
	f.rescue()
	f.wantCount(1, "SELECT COUNT(*) FROM effect WHERE consumer = 'points' AND msg_id = 'before'")
	f.wantCount(0, "SELECT COUNT(*) FROM effect WHERE consumer = 'coupons' AND msg_id = 'before'")
	f.wantCount(2, "SELECT COUNT(DISTINCT consumer) FROM effect WHERE msg_id = 'after'")
}
