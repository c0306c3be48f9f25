package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"

	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

// What an order owes to others arrives once, whatever becomes of Redis, the relay, the consumer and the process.

// goes lets work go on in the background until stop or the end of the test.
func (s *stack) goes(work func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); work(ctx) }()
	stop = func() { cancel(); <-done }
	s.t.Cleanup(stop)
	return stop
}

// listens lets an instance take what the broker brings, without its jobs: nothing arrives by rescue.
func (s *stack) listens(on int) (stop func()) {
	i := s.instances[on]
	return s.goes(func(ctx context.Context) { i.svc.messages.Run(ctx, i.svc.broker) })
}

// owed returns the order.paid messages of orders, as they stand in the outbox.
func (s *stack) owed(orders ...string) []outbox.Stored {
	s.t.Helper()
	var list []outbox.Stored
	for _, orderNo := range orders {
		m, err := outbox.Load(s.t.Context(), s.db, s.text("SELECT msg_id FROM t_outbox WHERE topic = 'order.paid' AND partition_key = ?", orderNo))
		if err != nil {
			s.t.Fatal(err)
		}
		list = append(list, m...)
	}
	return list
}

// publish sends messages past the relay, in one batch.
func (s *stack) publish(list ...outbox.Stored) {
	s.t.Helper()
	if err := s.instances[0].svc.broker.Publish(0, list); err != nil {
		s.t.Fatal(err)
	}
}

// eventually waits for a number in the database.
func (s *stack) eventually(want int, query string, args ...any) {
	s.t.Helper()
	testenv.Eventually(s.t, setupWait, query, func() error {
		if n := s.count(query, args...); n != want {
			return fmt.Errorf("%d, want %d", n, want)
		}
		return nil
	})
}

// untilHits waits until the consumer has counted so many messages with an outcome.
func (s *stack) untilHits(consumer, outcome string, want int) {
	s.t.Helper()
	testenv.Eventually(s.t, setupWait, outcome, func() error {
		if n := s.hits("dedup", consumer, outcome); n < want {
			return fmt.Errorf("%d, want %d", n, want)
		}
		return nil
	})
}

// wantEarned asserts a user's points, and how often they have changed.
func (s *stack) wantEarned(user int64, balance, changes int) {
	s.t.Helper()
	var got struct {
		Balance int               `json:"balance"`
		Data    []json.RawMessage `json:"data"`
	}
	r := s.must(http.StatusOK, call{as: buyer(user), path: "/v1/me/points"})
	if err := json.Unmarshal(r.body, &got); err != nil || got.Balance != balance || len(got.Data) != changes {
		s.t.Errorf("user %d has %s; want %d points after %d changes", user, r.body, balance, changes)
	}
}

const (
	entries = "SELECT COUNT(*) FROM t_point_entry"
	unsent  = "SELECT COUNT(*) FROM t_outbox WHERE sent_at IS NULL"
)

// B20: one batch holds a message that is known, two that come twice, one of which fails, and a new one. Each has its one effect, and
// neither a repeat nor the failure touches another; with the Bloom filter and without.
func TestABatchTakesEffectMessageByMessage(t *testing.T) {
	for _, bloom := range []string{"false", "true"} {
		t.Run("DEDUP_BLOOM="+bloom, func(t *testing.T) {
			s := newStack(t, "DEDUP_BLOOM="+bloom)
			s.sku(1, 30000, 10)
			var orders []string
			for user := range int64(4) {
				orderNo, _ := s.paid(1001 + user)
				orders = append(orders, orderNo)
			}
			s.exec("UPDATE t_outbox SET payload = CONCAT('!', payload) WHERE topic = 'order.paid' AND partition_key = ?", orders[2])
			list := s.owed(orders...)
			known, twice, failing, fresh := list[0], list[1], list[2], list[3]
			stop := s.listens(0)
			s.publish(known)
			s.eventually(1, entries)
			s.publish(known, twice, known, twice, failing, failing, fresh)
			s.eventually(3, entries)
			s.untilHits("points", "replayed", 3)
			s.untilHits("points", "blocked", 1)
			stop()
			if n := s.count("SELECT COUNT(*) FROM t_message_dedup WHERE msg_id = ? AND status = 2 AND tries = 1", failing.ID); n != 1 {
				t.Errorf("%d messages wait for their second try, want the one that failed", n)
			}
			s.cure(orders[2])
			s.advance(time.Second)
			s.round(1, "messages.retry")
			for user := range int64(4) {
				s.wantEarned(1001+user, 300, 1)
			}
			if n := s.count("SELECT COUNT(*) FROM t_message_dedup"); n != 4 {
				t.Errorf("%d records, want one for each message", n)
			}
			s.wantSound()
		})
	}
}

// B41, B111: Redis goes between commit and send. What is owed arrives by rescue, and once; when Redis is back, what is sent after all is
// a repeat.
func TestWithoutRedisMessagesArriveByRescue(t *testing.T) {
	s := newStack(t)
	s.sku(1, 30000, 10)
	for _, i := range s.instances {
		i.redis.Down()
	}
	s.paid(1001)
	refunded, _ := s.paid(1002)
	s.refund(1002, refunded, "R-1", 10000)
	s.bank("R-1", "succeed")
	s.tell("refund.succeeded", "R-1", 0)
	owed := s.count(unsent)
	for i := range s.instances {
		s.goes(s.instances[i].svc.work)
	}
	s.advance(outbox.LookAfter)
	s.eventually(3, "SELECT COUNT(*) FROM t_message_dedup WHERE status = 1")
	s.wantEarned(1001, 300, 1)
	if n := s.count(unsent); n != owed {
		t.Errorf("%d messages are unsent without Redis, want all %d", n, owed)
	}
	for _, i := range s.instances {
		i.redis.Up()
	}
	s.eventually(0, unsent)
	s.untilHits("points", "replayed", 3)
	s.wantEarned(1001, 300, 1)
	if n := s.count("SELECT balance FROM t_point_account WHERE user_id = 1002"); n != 200 {
		t.Errorf("the refunded order's buyer has %d points, want 200", n)
	}
	s.wantSound()
}

// B111: the relay's instance dies between publishing and marking. When its lease is over another one sends the same again; the effects
// are there once.
func TestARelayThatDiesBeforeItsMarkSendsTwice(t *testing.T) {
	s := newStack(t)
	s.sku(1, 30000, 10)
	s.paid(1001)
	gate := testenv.NewGate(t)
	s.instances[0].mysql.On(testenv.Contains("UPDATE t_outbox SET sent_at"), 1, testenv.Hold(gate))
	died := s.goes(func(context.Context) { s.round(0, "outbox.relay") })
	gate.WaitEntered(t, 1)
	s.instances[0].die()
	died()
	s.round(1, "outbox.relay")
	if n := s.count(unsent); n != 2 {
		t.Errorf("%d messages are unsent while the dead relay's lease lasts, want 2", n)
	}
	s.advance(10 * time.Second) // its lease
	s.round(1, "outbox.relay")
	s.eventually(0, unsent)
	s.listens(1)
	s.untilHits("points", "replayed", 1)
	s.instances[0].revive()
	s.wantEarned(1001, 300, 1)
	s.wantSound()
}

// B84, B111: a consumer's instance dies with a message in its hands, before its COMMIT counts or after. Nothing is half done, and the
// rescue on the other instance brings what is missing.
func TestAConsumerThatDiesLeavesAllOrNothing(t *testing.T) {
	for name, death := range map[string]struct {
		hold func(*testenv.Gate) testenv.Action
		done int
	}{"before-commit": {testenv.Hold, 0}, "after-commit-before-reply": {testenv.HoldReply, 1}} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 30000, 10)
			orderNo, _ := s.paid(1001)
			gate := testenv.NewGate(t)
			s.instances[0].mysql.On(testenv.Prefix("COMMIT"), 1, death.hold(gate))
			stop := s.listens(0)
			s.publish(s.owed(orderNo)...)
			gate.WaitEntered(t, 1)
			s.instances[0].die()
			stop()
			for _, table := range []string{"t_point_entry", "t_point_account", "t_message_dedup"} {
				s.eventually(death.done, "SELECT COUNT(*) FROM "+table) // until the server has noticed that its client is gone
			}
			s.advance(outbox.LookAfter)
			s.round(1, "messages.rescue")
			s.round(1, "messages.rescue")
			s.instances[0].revive()
			s.publish(s.owed(orderNo)...)
			s.listens(0)
			s.untilHits("points", "replayed", 1)
			s.wantEarned(1001, 300, 1)
			s.wantSound()
		})
	}
}

// FLUSHALL takes streams and groups away while a message is on its way, in a consumer's hands, or done and not yet acknowledged. No effect
// is lost or doubled, and the next message comes through the broker as before.
func TestAFlushedRedisLosesNoEffect(t *testing.T) {
	for name, moment := range map[string]func(s *stack, gate *testenv.Gate){
		"on its way": nil,
		"in hand": func(s *stack, gate *testenv.Gate) {
			s.instances[0].mysql.On(testenv.Prefix("COMMIT"), 1, testenv.Hold(gate))
		},
		"done": func(s *stack, gate *testenv.Gate) {
			s.instances[0].redis.On(testenv.Prefix("XACK"), 1, testenv.Hold(gate))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 30000, 10)
			s.paid(1001)
			gate := testenv.NewGate(t)
			if moment != nil {
				moment(s, gate)
				s.listens(0)
			}
			s.round(1, "outbox.relay")
			if moment != nil {
				gate.WaitEntered(t, 1)
			}
			if err := testenv.OpenRedis(t, s.redisURL).FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			gate.Open()
			if moment == nil {
				s.listens(0)
			}
			s.paid(1002)
			s.round(1, "outbox.relay")
			s.eventually(1, "SELECT COUNT(*) FROM t_point_account WHERE user_id = 1002")
			s.advance(outbox.LookAfter)
			s.round(1, "messages.rescue")
			s.wantEarned(1001, 300, 1)
			s.wantEarned(1002, 300, 1)
			s.wantSound()
		})
	}
}

// What stands in a stream without having been owed has no effect, what says something else than was owed has the effect of what was owed,
// and what cannot be read blocks nothing.
func TestWhatWasNeverOwedHasNoEffect(t *testing.T) {
	s := newStack(t)
	s.sku(1, 30000, 10)
	orderNo, _ := s.paid(1001)
	other, _ := s.paid(1002)
	known, spoilt := s.owed(orderNo)[0], s.owed(other)[0]
	again := known
	again.ID, spoilt.Payload = "forged", []byte(`{"user_id":1003,"paid":99999900,"refunded":0,"refund_seq":0}`)
	streams := testenv.OpenRedis(t, s.redisURL)
	if err := streams.XAdd(t.Context(), &redis.XAddArgs{Stream: "oncepay:events:{0}", Values: []string{"id", "unreadable"}}).Err(); err != nil {
		t.Fatal(err)
	}
	s.listens(0)
	s.publish(again, spoilt, known)
	s.untilHits("points", "blocked", 2) // the forged one, and what is no message
	s.untilHits("points", "passed", 2)
	s.wantEarned(1001, 300, 1)
	s.wantEarned(1002, 300, 1)
	if n := s.count("SELECT COUNT(*) FROM t_message_dedup") + s.count("SELECT COUNT(*) FROM t_point_account"); n != 4 {
		t.Errorf("%d records and accounts, want 2 of each", n)
	}
	s.wantSound()
}

// With KAFKA_BROKERS messages go through Kafka, and what comes twice is a repeat there too.
func TestPointsArriveThroughKafka(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "oncepay.events"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	s := newStack(t, "KAFKA_BROKERS="+strings.Join(cluster.ListenAddrs(), ","))
	s.sku(1, 30000, 10)
	for i := range s.instances {
		s.listens(i)
	}
	orderNo, _ := s.paid(1001)
	s.round(0, "outbox.relay")
	s.eventually(1, entries)
	s.publish(s.owed(orderNo)...)
	s.untilHits("points", "replayed", 1)
	s.wantEarned(1001, 300, 1)
	if n := testenv.OpenRedis(t, s.redisURL).Exists(t.Context(), streamsOf(s)...).Val(); n != 0 {
		t.Errorf("%d streams in Redis, want none", n)
	}
	s.wantSound()
}

// streamsOf names the streams that messages would be in without Kafka.
func streamsOf(s *stack) (keys []string) {
	for shard := range outbox.Shards {
		keys = append(keys, fmt.Sprintf("oncepay:events:{%d}", shard))
	}
	return keys
}

// commitsAfter matches the COMMITs that come after a command was seen.
func commitsAfter(text string) testenv.Match {
	seen := false
	return func(cmd string) bool {
		seen = seen || strings.Contains(cmd, text)
		return seen && cmd == "COMMIT"
	}
}

// B110: the process is killed behind the COMMIT of the notice that makes PAID, with consumers, Redis and broker down for a minute. The
// message is in the outbox from that COMMIT; five more notices add none and are not needed, and after a restart points and the
// notification come once.
func TestAFollowUpSurvivesTheProcessThatOwedIt(t *testing.T) {
	endpoint := newReceiver(t)
	endpoint.calm.Store(true)
	dsn, server := testenv.Database(t), testenv.PrivateRedis(t)
	s := newStackOn(t, dsn, server.URL(), "NOTIFY_URL="+endpoint.URL)
	s.sku(1, 30000, 10)
	orderNo, n := s.offered(1001)
	env := []string{"NOTIFY_URL=" + endpoint.URL, "MOCKPAY_URL=" + s.channel.url}
	number, process := s.startProcess(dsn, env...)
	s.instances[1], s.instances[number] = s.instances[number], s.instances[1] // notices go to the first two
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	s.instances[1].mysql.On(commitsAfter("INSERT INTO t_channel_notice"), -1, testenv.HoldReply(testenv.NewGate(t)))
	abandoned := make(chan reply, 1)
	go func() { abandoned <- s.notify(1, n) }()
	s.eventually(1, "SELECT COUNT(*) FROM t_order WHERE order_no = ? AND status = 1", orderNo)
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if r := <-abandoned; r.err == nil {
		t.Errorf("the channel was answered %v by a process that is dead", r)
	}
	s.instances[1], s.instances[number] = s.instances[number], s.instances[1]
	s.advance(time.Minute)
	for i := range 5 {
		wantAck(t, s.notify(i, n))
	}
	s.wantFate(t, orderNo, paidOnce())
	s.wantEarned(1001, 0, 0)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.startProcess(dsn, env...)
	s.eventually(2, "SELECT COUNT(*) FROM t_message_dedup WHERE status = 1")
	wantAck(t, s.notify(0, n))
	s.wantFate(t, orderNo, paidOnce())
	s.wantEarned(1001, 300, 1)
	if calls := endpoint.calls(); calls != 1 {
		t.Errorf("the endpoint was called %d times, want once", calls)
	}
	s.wantSound()
}
