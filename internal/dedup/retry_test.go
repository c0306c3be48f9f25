package dedup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/web"
)

// B111: a poison message is tried with growing pauses, becomes a dead letter with one alarm, and blocks no other.
func TestAPoisonMessageBecomesADeadLetterAndBlocksNoOther(t *testing.T) {
	f := newFixture(t)
	list := f.owe("good", "poison", "mended")
	f.failing(func(m outbox.Stored) error {
		if m.ID == "good" || m.ID == "mended" && f.clock().Minute() > 0 {
			return nil
		}
		return errors.New("broken")
	})
	for _, m := range list {
		f.deliver(m)
	}
	f.wantCount(1, "SELECT COUNT(*) FROM effect")
	for try := 1; try < MaxTries; try++ {
		wait := time.Duration(1<<(try-1)) * time.Second
		f.advance(wait - time.Microsecond)
		f.retry()
		f.wantTries("poison", try)
		f.advance(time.Microsecond)
		failed := make([]error, 5) // of five instances one tries it
		testenv.Together(len(failed), func(i int) { failed[i] = f.Retry(t.Context()) })
		if err := errors.Join(failed...); err != nil {
			t.Errorf("retry: %v", err)
		}
		f.wantTries("poison", try+1)
	}
	f.wantOnce(list[0])
	f.wantOnce(list[2])
	f.wantCount(0, "SELECT COUNT(*) FROM effect WHERE msg_id = 'poison'")
	letters, err := f.List(t.Context(), web.Page{Limit: 20})
	if err != nil || len(letters) != 1 || letters[0].MsgID != "poison" || letters[0].Tries != MaxTries || letters[0].LastError != "broken" || letters[0].OrderNo != orderKey {
		t.Fatalf("dead letters: %+v, %v", letters, err)
	}
	f.wantCount(1, "SELECT COUNT(*) FROM t_exception WHERE kind = 'dead_letter' AND subject = 'points:poison' AND order_no = ? AND status = 0", orderKey)
	if n := testutil.ToFloat64(f.Metrics.Exceptions(string(exception.DeadLetter))); n != 1 {
		t.Errorf("%v alarms, want 1", n)
	}
	f.advance(1000 * time.Hour)
	f.retry()
	f.deliver(list[1]) // a dead letter is a person's, not the broker's
	f.wantTries("poison", MaxTries)
}

// A message that has left the outbox cannot be tried again; it says so, and does not wait for ever.
func TestAMessageThatIsGoneIsADeadLetter(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	f.failing(func(outbox.Stored) error { return errors.New("broken") })
	f.deliver(m)
	if _, err := f.DB.Exec("DELETE FROM t_outbox"); err != nil {
		t.Fatal(err)
	}
	f.advance(firstPause)
	f.retry()
	if r := f.record(f.Consumers[0], m); r.Status != Dead || !strings.Contains(r.LastError, "not in the outbox") {
		t.Errorf("%+v", r)
	}
	f.wantCount(1, "SELECT COUNT(*) FROM t_exception WHERE subject = 'points:m1'")
}

// One consumer that is slow keeps no other's messages waiting.
func TestASlowConsumerKeepsNoOtherWaiting(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	slow, gate := f.caller(), testenv.NewGate(t)
	f.Consumers = []Consumer{slow, f.consumer("points")}
	f.failing(func(outbox.Stored) error { return errors.New("broken") })
	for _, c := range f.Consumers {
		if err := f.Deliver(t.Context(), c, m); err != nil {
			t.Fatal(err)
		}
	}
	f.failing(nil)
	f.Consumers[0].Call = func(ctx context.Context, _ outbox.Stored) error { return gate.Enter(ctx) }
	f.advance(firstPause)
	done := make(chan error)
	go func() { done <- f.Retry(context.Background()) }()
	gate.WaitEntered(t, 1)
	testenv.Eventually(t, 10*time.Second, "the other consumer's message", func() error {
		if n := f.count("SELECT COUNT(*) FROM effect"); n != 1 {
			return fmt.Errorf("%d effects", n)
		}
		return nil
	})
	gate.Open()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A call outside is made by one run at a time and once it succeeded not again.
func TestACallIsMadeOnceWhenItSucceeds(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	f.Consumers = []Consumer{f.caller()}
	failed := make([]error, 20)
	testenv.Together(len(failed), func(i int) { failed[i] = f.Deliver(t.Context(), f.Consumers[0], m) })
	if err := errors.Join(failed...); err != nil {
		t.Errorf("deliver: %v", err)
	}
	f.advance(time.Hour)
	f.retry()
	f.wantTries("m1", 1)
	f.wantCount(1, "SELECT COUNT(*) FROM t_message_dedup WHERE status = ? AND outcome = 'called'", Done)
}

func TestACallThatFailsIsMadeAgainAfterItsPause(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	f.Consumers = []Consumer{f.caller()}
	f.failing(func(outbox.Stored) error { panic("at the disco") })
	f.deliver(m)
	if r := f.record(f.Consumers[0], m); r.Status != Waiting || r.Tries != 1 || r.LastError != "panic: at the disco" {
		t.Errorf("%+v", r)
	}
	f.failing(nil)
	f.retry()
	f.wantTries("m1", 1)
	f.advance(firstPause)
	f.retry()
	f.wantTries("m1", 2)
	f.wantCount(1, "SELECT COUNT(*) FROM t_message_dedup WHERE status = ?", Done)
}

// B51, B111: killed between the call and its note, the call is made again, with the same message, but not before the lease ends.
func TestACallWhoseRunDiedIsMadeAgain(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
	s := f.on(testenv.OpenDB(t, dsn))
	s.Consumers = []Consumer{f.caller()}
	f.failing(func(outbox.Stored) error { proxy.Down(); return nil })
	if err := s.Deliver(t.Context(), s.Consumers[0], m); err == nil {
		t.Error("acknowledged although nobody knows that the call was made")
	}
	f.failing(nil)
	f.Consumers = []Consumer{f.caller()}
	f.deliver(m) // the redelivery leaves it to the run that may still be at work
	f.advance(f.Lease - time.Microsecond)
	f.retry()
	f.wantTries("m1", 1)
	f.advance(time.Microsecond)
	f.retry()
	f.wantTries("m1", 2)
	if r := f.record(f.Consumers[0], m); r.Status != Done || r.Tries != 1 {
		t.Errorf("%+v; want done, and the run that died as a failed try", r)
	}
}

// A run that was presumed dead and wakes up changes no row, whether its call succeeded or failed.
func TestARunPresumedDeadChangesNothing(t *testing.T) {
	f := newFixture(t)
	for name, late := range map[string]error{"after success": nil, "after failure": errors.New("too late")} {
		t.Run(name, func(t *testing.T) {
			f.reset(t)
			m := f.owe("m1")[0]
			f.Consumers = []Consumer{f.caller()}
			gate := testenv.NewGate(t)
			f.failing(func(outbox.Stored) error {
				f.failing(func(outbox.Stored) error { return errors.New("broken") })
				return errors.Join(gate.Enter(context.Background()), late)
			})
			done := make(chan error)
			go func() { done <- f.Deliver(context.Background(), f.Consumers[0], m) }()
			gate.WaitEntered(t, 1)
			f.advance(f.Lease)
			f.retry() // takes over, and fails
			before := f.record(f.Consumers[0], m)
			gate.Open()
			if err := <-done; err != nil {
				t.Error(err)
			}
			after := f.record(f.Consumers[0], m)
			if before.nextTryAt.Equal(*after.nextTryAt) {
				after.nextTryAt = before.nextTryAt
			}
			if after != before || after.Status != Waiting || after.Tries != 2 || after.LastError != "broken" {
				t.Errorf("%+v\nbecame %+v", before, after)
			}
			if n := hits(f.Service, f.Consumers[0], metrics.Lost); n != 1 {
				t.Errorf("%v lost runs counted, want 1", n)
			}
		})
	}
}

// The same for an effect of ours: the transaction of a run that lost its row is rolled back.
func TestAHandlerPresumedDeadHasNoEffect(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	f.failing(func(outbox.Stored) error { return errors.New("broken") })
	f.deliver(m)
	f.failing(nil)
	was := f.record(f.Consumers[0], m)
	f.advance(firstPause)
	held := f.hold(was)
	if claimed, err := claim(t.Context(), f.DB, was, held); err != nil || !claimed {
		t.Fatal(claimed, err)
	}
	f.advance(f.Lease)
	f.retry() // takes over, and succeeds
	if _, err := f.work(t.Context(), f.Consumers[0], m, held); err != nil {
		t.Error(err)
	}
	f.wantOnce(m)
	f.wantTries("m1", 2)
}

// A message that takes every run with it is given up like one that fails.
func TestAMessageWhoseRunsAllDieIsGivenUp(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	f.Consumers = []Consumer{f.caller()}
	held := f.hold(Record{Consumer: "notify", MsgID: m.ID, Topic: topic, key: orderKey})
	held.Tries = MaxTries - 2
	if err := f.DB.InTx(t.Context(), inserting(t.Context(), held, f.clock())); err != nil {
		t.Fatal(err)
	}
	was := f.record(f.Consumers[0], m)
	f.advance(f.Lease)
	again := f.hold(was)
	again.Tries++
	if claimed, err := claim(t.Context(), f.DB, was, again); err != nil || !claimed { // and dies
		t.Fatal(claimed, err)
	}
	f.advance(f.Lease)
	f.retry()
	if r := f.record(f.Consumers[0], m); r.Status != Dead || r.Tries != MaxTries {
		t.Errorf("%+v", r)
	}
	f.wantTries("m1", 0)
}
