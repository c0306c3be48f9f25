package main

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"example.com/oncepay/internal/testenv"
)

// points are where a contender can have decided by what it read and not yet written: before its transaction, and at the first
// write in it.
func points() []testenv.Match {
	return []testenv.Match{testenv.Prefix("START TRANSACTION"), testenv.Contains("UPDATE t_order SET status")}
}

// stalled starts contender on instance 0 and holds it at a point, lets others run to their end, then lets it go on.
func (s *stack) stalled(t *testing.T, point testenv.Match, contender, others func()) {
	t.Helper()
	gate := testenv.NewGate(t)
	rule := s.instances[0].mysql.On(point, 1, testenv.Hold(gate))
	done := make(chan struct{})
	go func() {
		defer close(done)
		contender()
	}()
	gate.WaitEntered(t, 1)
	rule.Stop()
	others()
	gate.Open()
	<-done
}

// B80: what was read before the lock is decided again under it. The poller, a cancel and a notice each stall between reading
// and writing while another finishes.
func TestWhatWasReadIsDecidedAgainUnderTheLock(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	user := int64(1000)
	for _, point := range points() {
		user++
		orderNo, n := s.offered(user)
		s.advance(time.Minute) // the poller's look at it is due
		s.stalled(t, point, func() { s.round(0, "payments.poll") }, func() { wantAck(t, s.notify(1, n)) })
		wantAck(t, s.notify(0, n))
		s.wantFate(t, orderNo, paidOnce())

		user++
		orderNo, n = s.offered(user)
		cancel := s.step(user, orderNo, "cancel", "")
		s.stalled(t, point, func() { wantProblem(t, s.do(cancel), http.StatusConflict, "order_state_illegal") }, func() { wantAck(t, s.notify(1, n)) })
		s.wantFate(t, orderNo, paidOnce())

		user++
		orderNo, n = s.offered(user)
		s.stalled(t, point, func() { wantAck(t, s.notify(0, n)) }, func() { s.must(http.StatusOK, on(1, s.step(user, orderNo, "cancel", ""))) })
		s.wantFate(t, orderNo, fate{order: "CANCELLED", payment: "SUCCEEDED", returned: 1, credits: 1})
	}
	user++
	orderNo, n := s.offered(user)
	s.stalled(t, points()[0], func() {
		if r := s.do(refundCall(0, user, orderNo, 1999, key("refund-%d", user))); r.status != http.StatusAccepted {
			t.Errorf("refund: %v; want 202, as the money is there by then", r)
		}
	}, func() { wantAck(t, s.notify(1, n)) })
	refunding := paidOnce()
	refunding.order = "REFUNDING"
	s.wantFate(t, orderNo, refunding)
	s.wantSound()
}

// B81: a hundred races of the notice against the poller, under jitter: the loser compensates nothing. No close, no refund, no
// stock given back, and every delivery acknowledged.
func TestLosersOfAHundredRacesCompensateNothing(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	const races = 100 // two rounds of the poller's batch
	orders, notices := make([]string, races), make([]func(int) reply, races)
	for i := range orders {
		orderNo, n := s.offered(int64(2000 + i))
		orders[i], notices[i] = orderNo, func(on int) reply { return s.notify(on, n) }
	}
	s.advance(time.Minute)
	for _, i := range s.instances {
		i.mysql.On(testenv.Contains("t_order"), -1, testenv.Jitter(20*time.Millisecond))
	}
	const deliverers = 10
	testenv.Together(deliverers+2, func(i int) {
		if i >= deliverers {
			s.round(i, "payments.poll")
			s.round(i, "payments.poll")
			return
		}
		// The poller begins at the oldest, the notices at the newest once it has begun: they meet in between.
		testenv.Eventually(t, setupWait, "the poller has begun", func() error {
			if s.count("SELECT COUNT(*) FROM t_trade WHERE source = 'query'") == 0 {
				return errors.New("no trade heard of by query")
			}
			return nil
		})
		for r := races - 1 - i; r >= 0; r -= deliverers {
			wantAck(t, notices[r](r))
		}
	})
	for _, orderNo := range orders {
		s.wantFate(t, orderNo, paidOnce())
	}
	for _, kind := range []string{"close", "refund"} {
		if n := s.effects(kind, ""); n != 0 {
			t.Errorf("the channel had %d of %s, want none", n, kind)
		}
	}
	if n := s.count("SELECT COUNT(*) FROM t_stock_movement WHERE kind IN ('release', 'return')"); n != 0 {
		t.Errorf("stock was given back %d times", n)
	}
	if n := s.count("SELECT COUNT(*) FROM t_trade WHERE source = 'query'"); n == 0 || n == races {
		t.Errorf("the poller won %d of %d races: there was no race", n, races)
	}
	s.wantSound()
}

// B81: fifty races of two equal refunds, and of two creates with one token.
func TestLosersOfEqualRequestsGetTheWinnersResult(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	for user := int64(4000); user < 4050; user++ {
		token := s.token(user)
		made := s.all(2, func(i int) call { return create(i, user, 1, key("create-%d-%d", user, i), token) })
		if len(distinct(made, "order_no")) != 1 {
			t.Fatalf("creates: %v", made)
		}
		orderNo := made[0].field("order_no")
		if orderNo == "" {
			orderNo = made[1].field("order_no")
		}
		s.payWith(user, orderNo, "mockpay")
		refunds := s.all(2, func(i int) call {
			c := refundCall(i, user, orderNo, 500, key("refund-%d-%d", user, i))
			c.body = fmt.Sprintf(`{"refund_no":"R-%d","amount":500,"reason":"test"}`, user)
			return c
		})
		for _, r := range refunds {
			if r.status != http.StatusAccepted || r.field("refund_no") != fmt.Sprintf("R-%d", user) {
				t.Errorf("refund: %v; want the one refund", r)
			}
		}
	}
	for range 2 {
		testenv.Together(2, func(i int) { s.round(i, "refunds.send") })
	}
	if n := s.effects("refund", ""); n != 50 {
		t.Errorf("the channel has %d refunds, want 50", n)
	}
	if n := s.count("SELECT COUNT(*) FROM t_order WHERE status = 1"); n != 50 {
		t.Errorf("%d orders are PAID, want 50", n)
	}
	s.wantSound()
}

// expire lets an order's time to pay run out while the channel does not know its trade, so that it is not closed there and the
// buyer can still pay.
func (s *stack) expire(t *testing.T) {
	t.Helper()
	s.useChannel(newChannelServer(t).url) // one that knows nothing
	s.advance(16 * time.Minute)
	testenv.Together(2, func(i int) { s.round(i, "orders.close") })
	s.useChannel(s.channel.url)
}

// B87: an order expires, its stock is back, and then its money comes, three times on both instances.
func TestLateSuccessDoesNotReviveAnExpiredOrder(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1)
	orderNo := s.order(1001, 1)
	s.faults(`{"charge":{"drop_after":true,"times":1}}`) // the trade is there, and we never heard of it
	payNo := s.must(http.StatusAccepted, payCall(0, 1001, orderNo, "mockpay", key("K1"))).field("pay_no")
	s.expire(t)
	s.wantFate(t, orderNo, fate{order: "CANCELLED", payment: "CLOSED"})
	s.paid(1002) // the stock went to somebody else
	s.decide(payNo, "pay")
	n := s.noticeOf("payment.succeeded", payNo)
	testenv.Together(6, func(i int) { wantAck(t, s.notify(i, n)) })
	s.wantFate(t, orderNo, fate{order: "CANCELLED", payment: "SUCCEEDED", returned: 1, credits: 1})
	for range 2 {
		testenv.Together(2, func(i int) { s.round(i, "refunds.send") })
	}
	refundNo := "ra1:mockpay:" + n.TradeNo
	if got := s.effects("refund", ""); got != 1 || s.effects("refund", refundNo) != 1 {
		t.Errorf("the channel has %d refunds, want one: %s", got, refundNo)
	}
	s.wantSound()
}

// B87: an applied success again after a full refund changes nothing.
func TestAnAppliedSuccessAfterTheRefundChangesNothing(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo, n := s.offered(1001)
	wantAck(t, s.notify(0, n))
	refundNo := s.must(http.StatusAccepted, refundCall(0, 1001, orderNo, 1999, key("all"))).field("refund_no")
	s.round(0, "refunds.send")
	wantAck(t, s.notify(0, n)) // while it is REFUNDING
	wantAck(t, s.notify(0, s.refundNoticeOf("refund.succeeded", refundNo)))
	for i := range 3 {
		wantAck(t, s.notify(i, n))
	}
	refunded := paidOnce()
	refunded.order, refunded.refunded = "REFUNDED", 1999
	s.wantFate(t, orderNo, refunded)
	s.wantSound()
}

// B89: the success notice is lost and the poller applies it; after a full refund the old notice comes.
func TestALostSuccessIsFoundByThePollerAndItsNoticeComesLate(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	s.faults(`{"notices":{"lose":true}}`)
	orderNo := s.order(1001, 1)
	payNo := s.attempt(1001, orderNo, "mockpay")
	s.at(http.MethodPost, "/v1/trades/"+payNo+"/pay", "")
	old := s.noticeOf("payment.succeeded", payNo)
	s.advance(time.Minute)
	testenv.Together(2, func(i int) { s.round(i, "payments.poll") })
	s.wantFate(t, orderNo, paidOnce())
	refundNo := s.must(http.StatusAccepted, refundCall(0, 1001, orderNo, 1999, key("all"))).field("refund_no")
	s.round(0, "refunds.send")
	s.at(http.MethodPost, "/v1/refunds/"+refundNo+"/succeed?notify=off", "")
	s.advance(time.Minute)
	testenv.Together(2, func(i int) { s.round(i, "refunds.send") })
	refunded := paidOnce()
	refunded.order, refunded.refunded = "REFUNDED", 1999
	s.wantFate(t, orderNo, refunded)
	for i := range 3 {
		wantAck(t, s.notify(i, old))
	}
	s.wantFate(t, orderNo, refunded)
	s.wantSound()
}
