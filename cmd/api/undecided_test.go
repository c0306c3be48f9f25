package main

import (
	"context"
	"net/http"
	"testing"

	"example.com/oncepay/internal/testenv"
)

// What could not be decided is answered 503 and comes again; Redis decides nothing.

// Redis is down during a callback: it is applied all the same. (B41)
func TestCallbacksNeedNoRedis(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	orderNo, n := s.offered(1001)
	for _, i := range s.instances {
		i.redis.Down()
	}
	replies := make([]reply, 10)
	testenv.Together(10, func(i int) { replies[i] = s.notify(i, n) })
	for _, r := range replies {
		wantAck(t, r)
	}
	s.wantFate(t, orderNo, paidOnce())
	s.wantSound()
}

// B82: somebody holds the order's row for too long: 503, never a false acknowledgement; the next delivery is applied.
func TestALockedOrderIsUndecidedAndComesAgain(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	orderNo, n := s.offered(1001)
	tx, err := s.db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	var id int64
	if err := tx.QueryRow("SELECT id FROM t_order WHERE order_no = ? FOR UPDATE", orderNo).Scan(&id); err != nil {
		t.Fatal(err)
	}
	replies := make([]reply, 4)
	testenv.Together(len(replies), func(i int) { replies[i] = s.notify(i, n) })
	for _, r := range replies {
		wantUndecided(t, r)
		wantProblem(t, r, http.StatusServiceUnavailable, "undecided")
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.wantNothingOf(t, orderNo, n)
	wantAck(t, s.notify(0, n))
	s.wantFate(t, orderNo, paidOnce())
	s.wantSound()
}

// B82: twenty deliveries while the winner's COMMIT is on its way: they wait for it, and all are acknowledged.
func TestLosersOfARaceAcknowledgeWhatTheWinnerDid(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	orderNo, n := s.offered(1001)
	gate := testenv.NewGate(t)
	var writers []*testenv.Rule
	for _, i := range s.instances {
		i.mysql.On(testenv.Prefix("COMMIT"), 1, testenv.Hold(gate))
		writers = append(writers, i.mysql.On(testenv.Contains("UPDATE t_order SET status"), -1, testenv.Action{}))
	}
	replies := make([]reply, 20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		testenv.Together(len(replies), func(i int) { replies[i] = s.notify(i, n) })
	}()
	gate.WaitEntered(t, 1)
	for _, w := range writers {
		w.Wait(t, 1)
	}
	gate.Open()
	<-done
	for _, r := range replies {
		wantAck(t, r)
	}
	s.wantFate(t, orderNo, paidOnce())
	s.wantSound()
}

// B84, B19: each single command of a notice's transaction is lost, or carried out without its reply, COMMIT's too. The mark and
// the effect are one transaction: the redelivery is worked on to the end, and has its effect once.
func TestAnyLostCommandOfANoticeIsMendedByARedelivery(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	user := int64(3000)
	kinds := map[string]struct {
		arrange func() (string, func(on int) reply)
		want    fate
	}{
		"success": {func() (string, func(int) reply) {
			user++
			orderNo, n := s.offered(user)
			return orderNo, func(on int) reply { return s.notify(on, n) }
		}, paidOnce()},
		"late": {func() (string, func(int) reply) {
			user++
			orderNo, n := s.offered(user)
			s.must(http.StatusOK, s.step(user, orderNo, "cancel", ""))
			return orderNo, func(on int) reply { return s.notify(on, n) }
		}, fate{order: "CANCELLED", payment: "SUCCEEDED", returned: 1, credits: 1}},
		"refund": {func() (string, func(int) reply) {
			user++
			orderNo, refundNo := s.refunding(user, 1999)
			n := s.refundNoticeOf("refund.succeeded", refundNo)
			return orderNo, func(on int) reply { return s.notify(on, n) }
		}, fate{order: "REFUNDED", payment: "SUCCEEDED", paid: 1, credits: 1, messages: 1, refunded: 1999}},
	}
	proxy := s.instances[0].mysql
	for name, kind := range kinds {
		for _, command := range s.commandsOfNotice(kind.arrange) {
			for fault, act := range map[string]testenv.Action{"lost": testenv.CutBefore(), "no reply to": testenv.SwallowReply()} {
				orderNo, send := kind.arrange()
				rule := proxy.On(testenv.Prefix(command), 1, act)
				first := send(0)
				rule.Stop()
				if rule.Hits() != 1 {
					t.Errorf("%s: the rule for %q met %d commands", name, command, rule.Hits())
				}
				if first.status == http.StatusOK {
					wantAck(t, first) // a command the driver may send again by itself
				} else {
					wantUndecided(t, first)
				}
				wantAck(t, send(1))
				wantAck(t, send(0))
				s.wantFate(t, orderNo, kind.want)
				if t.Failed() {
					t.Fatalf("%s, %s %q", name, fault, command)
				}
			}
		}
	}
	s.wantSound()
}

// commandsOfNotice lists the different commands that a delivery to instance 0 sends to MySQL, cut before their values.
func (s *stack) commandsOfNotice(arrange func() (string, func(on int) reply)) []string {
	s.t.Helper()
	const length = 40 // enough to tell two statements apart
	_, send := arrange()
	proxy := s.instances[0].mysql
	proxy.ClearLog()
	wantAck(s.t, send(0))
	var commands []string
	seen := make(map[string]bool)
	for _, e := range proxy.Log() {
		if command := e.Cmd[:min(length, len(e.Cmd))]; !seen[command] {
			seen[command] = true
			commands = append(commands, command)
		}
	}
	return commands
}

// A lost reply to COMMIT: 503, because nobody knows; the next delivery finds the effect there and is acknowledged. (B84)
func TestALostCommitReplyIsUndecidedAndNotDoneTwice(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	orderNo, n := s.offered(1001)
	s.instances[0].mysql.On(testenv.Prefix("COMMIT"), 1, testenv.SwallowReply())
	wantUndecided(t, s.notify(0, n))
	s.wantFate(t, orderNo, paidOnce())
	wantAck(t, s.notify(0, n))
	wantAck(t, s.notify(1, n))
	s.wantFate(t, orderNo, paidOnce())
	s.wantSound()
}

// B84, B110: an instance dies at the COMMIT of the notice that makes PAID, before or after it counts.
func TestAnInstanceThatDiesInACallbackStrandsNothing(t *testing.T) {
	for name, action := range map[string]func(*testenv.Gate) testenv.Action{"before-commit": testenv.Hold, "after-commit-before-reply": testenv.HoldReply} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 1999, 1000)
			orderNo, n := s.offered(1001)
			gate := testenv.NewGate(t)
			s.instances[0].mysql.On(testenv.Prefix("COMMIT"), 1, action(gate))
			abandoned := make(chan reply, 1)
			go func() { abandoned <- s.notify(0, n) }()
			gate.WaitEntered(t, 1)
			s.instances[0].die()
			wantUndecided(t, <-abandoned)
			for range 5 {
				wantAck(t, s.notify(1, n))
			}
			s.instances[0].revive()
			wantAck(t, s.notify(0, n))
			s.wantFate(t, orderNo, paidOnce())
			s.wantSound()
		})
	}
}
