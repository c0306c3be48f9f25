package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/testenv"
)

// overdue moves both clocks past an order's time to pay.
func (s *stack) overdue() { s.advance(s.instances[0].svc.cfg.OrderPayTimeout + time.Second) }

// wantStock asserts what the shelf of SKU 1 says.
func (s *stack) wantStock(available, reserved, sold int) {
	s.t.Helper()
	r := s.must(http.StatusOK, call{on: 1, as: operator, path: "/v1/ops/skus/1"})
	got := [3]string{r.field("available"), r.field("reserved"), r.field("sold")}
	if want := [3]string{fmt.Sprint(available), fmt.Sprint(reserved), fmt.Sprint(sold)}; got != want {
		s.t.Errorf("available, reserved, sold = %v; want %v", got, want)
	}
}

// An unpaid order without any attempt ends when its time is over, not before, and gives its stock back.
func TestAnUnpaidOrderExpires(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo := s.order(1001, 1)
	s.advance(s.instances[0].svc.cfg.OrderPayTimeout - time.Minute)
	s.round(0, "orders.close")
	s.wantStatus(1001, orderNo, "INIT")
	s.wantStock(9, 1, 0)
	s.advance(time.Minute)
	s.round(0, "orders.close")
	s.wantStatus(1001, orderNo, "CANCELLED")
	s.wantStock(10, 0, 0)
	s.wantSound()
}

// Query, close at the channel, then cancel, in this order: as long as the channel does not answer one of the first two, nothing
// is cancelled and no stock comes back.
func TestNothingIsCancelledBeforeTheChannelHasClosed(t *testing.T) {
	for _, unanswered := range []string{"query", "close"} {
		t.Run(unanswered, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 100, 10)
			orderNo := s.order(1001, 1)
			payNo := s.attempt(1001, orderNo, "mockpay")
			s.overdue()
			s.faults(`{"` + unanswered + `":{"status":500},"notices":{"lose":true}}`)
			for i := range 3 {
				s.round(i, "orders.close")
				s.advance(time.Minute)
			}
			s.wantStatus(1001, orderNo, "INIT")
			s.wantStock(9, 1, 0)
			s.wantEffects("close", "", 0)
			s.faults(`{"notices":{"lose":true}}`)
			s.round(1, "orders.close")
			s.wantEffects("close", payNo, 1)
			s.wantPayment(1001, payNo, "CLOSED")
			s.wantStatus(1001, orderNo, "CANCELLED")
			s.wantStock(10, 0, 0)
			s.wantSound()
		})
	}
}

// The channel has closed, and the instance dies before it has cancelled: the next round, anywhere, goes on from there.
func TestAnExpiryCutShortGoesOn(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo := s.order(1001, 1)
	payNo := s.attempt(1001, orderNo, "mockpay")
	s.faults(`{"notices":{"lose":true}}`)
	s.overdue()
	gate := testenv.NewGate(t)
	s.instances[0].mysql.On(testenv.Prefix("START TRANSACTION"), 1, testenv.Hold(gate))
	done := make(chan struct{})
	go func() { defer close(done); s.round(0, "orders.close") }()
	gate.WaitEntered(t, 1)
	s.wantEffects("close", payNo, 1)
	s.wantStock(9, 1, 0)
	s.instances[0].die()
	<-done
	s.instances[0].revive()
	s.wantStatus(1001, orderNo, "INIT")
	s.advance(time.Minute)
	s.round(1, "orders.close")
	s.wantStatus(1001, orderNo, "CANCELLED")
	s.wantStock(10, 0, 0)
	s.wantEffects("close", payNo, 1)
	s.wantSound()
}

// Two instances run the job at once, again and again: the channel is asked to close once, the stock comes back once.
func TestTwoInstancesCloseOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	payNos := make([]string, 5)
	for i := range payNos {
		payNos[i] = s.attempt(1001, s.order(1001, 1), "mockpay")
	}
	s.faults(`{"notices":{"lose":true}}`)
	s.overdue()
	testenv.Together(6, func(i int) { s.round(i, "orders.close") })
	for _, payNo := range payNos {
		s.wantPayment(1001, payNo, "CLOSED")
		if n := s.arrivals("close", payNo); n != 1 {
			t.Errorf("the channel was asked %d times to close, want once", n)
		}
	}
	s.wantStock(10, 0, 0)
	s.wantSound()
}

// The buyer paid in the last moment and the notice was lost: the channel says paid when it is asked, and the order is PAID.
func TestAPaidAnswerMakesAnExpiredOrderPaid(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo := s.order(1001, 1)
	payNo := s.attempt(1001, orderNo, "mockpay")
	s.buyerPays(payNo)
	s.overdue()
	testenv.Together(2, func(i int) { s.round(i, "orders.close") })
	s.wantStatus(1001, orderNo, "PAID")
	s.wantPayment(1001, payNo, "SUCCEEDED")
	s.wantEffects("close", "", 0)
	s.wantStock(9, 0, 1)
	s.wantSound()
}

// B108, B104: twenty cancels by owner and operator beside the expiry job on both instances. One transition, stock back once,
// every answer 200 with the order.
func TestParallelCancelsGiveBackOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo := s.order(1001, 1)
	payNo := s.attempt(1001, orderNo, "mockpay")
	s.faults(`{"notices":{"lose":true}}`)
	s.overdue()
	testenv.Together(24, func(i int) {
		if i < 4 {
			s.round(i, "orders.close")
			return
		}
		c := s.step(1001, orderNo, "cancel", "")
		if i%3 == 0 {
			c.as = operator
		}
		if r := s.do(on(i, c)); r.status != http.StatusOK || r.field("status") != "CANCELLED" || r.field("order_no") != orderNo {
			t.Errorf("cancel: %v; want 200 and the order", r)
		}
	})
	if n := s.count("SELECT COUNT(*) FROM t_order_history WHERE to_status = 4"); n != 1 {
		t.Errorf("%d transitions, want 1", n)
	}
	s.wantStock(10, 0, 0)
	s.advance(time.Minute)
	s.round(0, "payments.poll") // closes what a cancel that was faster than the job left open
	s.wantPayment(1001, payNo, "CLOSED")
	s.wantEffects("close", payNo, 1)
	s.wantSound()
}

// A buyer cancels with an attempt open. The order ends at once, and the poller closes the attempt at the channel, so that no
// more money comes.
func TestACancelledOrdersAttemptIsClosed(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo := s.order(1001, 1)
	payNo := s.attempt(1001, orderNo, "mockpay")
	s.faults(`{"notices":{"lose":true}}`)
	s.must(http.StatusOK, s.step(1001, orderNo, "cancel", ""))
	s.wantStock(10, 0, 0)
	s.advance(time.Minute)
	testenv.Together(2, func(i int) { s.round(i, "payments.poll") })
	s.wantPayment(1001, payNo, "CLOSED")
	if n := s.arrivals("close", payNo); n != 1 {
		t.Errorf("the channel was asked %d times to close, want once", n)
	}
	if r := s.at(http.MethodPost, "/v1/trades/"+payNo+"/pay?notify=off", ""); r.status != http.StatusConflict {
		t.Errorf("paying afterwards: %v; want a refusal", r)
	}
	s.wantSound()
}

// B104: a create is held between its order and its stock. Nobody can cancel what is not there, the expiry job finds nothing, and
// stock that was not taken does not come back.
func TestAnOrderOnItsWayIsNotCancelled(t *testing.T) {
	for _, succeeds := range []bool{true, false} {
		t.Run(fmt.Sprintf("reservation succeeds=%v", succeeds), func(t *testing.T) {
			s := newStack(t, shortLocks()...)
			s.sku(1, 100, 10)
			gate := testenv.NewGate(t)
			mysql := s.instances[0].mysql
			mysql.On(testenv.Contains("UPDATE t_sku"), 1, testenv.Hold(gate))
			c := create(0, 1001, 1, key("K1"), "")
			answer := s.background(c)
			gate.WaitEntered(t, 1)
			if list := s.must(http.StatusOK, call{on: 1, as: buyer(1001), path: "/v1/orders"}); strings.Contains(string(list.body), "order_no") {
				t.Errorf("an order that is not committed shows: %v", list)
			}
			s.instances[1].clock.advance(time.Hour)
			s.round(1, "orders.close")
			s.wantStock(10, 0, 0)
			if succeeds {
				gate.Open()
			} else {
				mysql.Down() // the command at the gate is lost with its connection
			}
			r := <-answer
			if !succeeds {
				wantUndecided(t, r)
				s.wantStock(10, 0, 0)
				mysql.Up()
				r = s.finally(t, c)
			}
			orderNo := r.field("order_no")
			s.wantStock(9, 1, 0)
			s.round(1, "orders.close") // by its clock the order is long over
			s.wantStatus(1001, orderNo, "CANCELLED")
			s.wantStock(10, 0, 0)
			s.wantSound()
		})
	}
}

// B107: three users want the last item. The first lets it expire, after a charge that got lost on its way; the second buys it;
// the third is told before any payment. Then the first one's charge reaches the channel after all and is paid: the money goes
// back by itself, and the order's timeline shows it.
func TestTheLastItemAndLateMoney(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 1)
	first := s.order(1001, 1)
	s.faults(`{"charge":{"status":500,"times":1}}`)
	payNo := s.must(http.StatusAccepted, payCall(0, 1001, first, "mockpay", key("K1"))).field("pay_no")
	wantProblem(t, s.do(create(0, 1003, 1, key("early"), "")), http.StatusConflict, "out_of_stock")
	s.overdue()
	s.round(0, "orders.close")
	s.wantStatus(1001, first, "CANCELLED")
	second := s.order(1002, 1)
	s.settle(s.attempt(1002, second, "mockpay"))
	wantProblem(t, s.do(create(1, 1003, 1, key("late"), "")), http.StatusConflict, "out_of_stock")

	if r := s.at(http.MethodPost, "/v1/trades", fmt.Sprintf(`{"merchant_id":%q,"out_trade_no":%q,"amount":100,"currency":"CNY"}`, mockpayMerchant, payNo)); r.status != http.StatusOK {
		t.Fatalf("the late charge: %v", r)
	}
	s.settle(payNo)
	testenv.Together(2, func(i int) { s.round(i, "refunds.send") })
	auto := "ra1:mockpay:" + s.tradeNo(payNo)
	s.wantEffects("refund", auto, 1)
	s.bank(auto, "succeed")
	s.tell("refund.succeeded", auto, 0)
	s.wantStatus(1001, first, "CANCELLED")
	s.wantStatus(1002, second, "PAID")
	s.wantStock(0, 0, 1)
	story := string(s.must(http.StatusOK, call{as: buyer(1001), path: "/v1/orders/" + first + "/timeline"}).body)
	for _, part := range []string{"INIT -> CANCELLED", "is returned", "automatic refund of 100 CNY", "now SUCCESS", "refund.succeeded"} {
		if !strings.Contains(story, part) {
			t.Errorf("the timeline lacks %q: %s", part, story)
		}
	}
	s.wantSound()
}

// Late money for a trade that the channel itself had closed, and now will not take back: nothing is lost, a person is asked.
func TestLateMoneyThatCannotGoBackNeedsAPerson(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo := s.order(1001, 1)
	payNo := s.attempt(1001, orderNo, "mockpay")
	s.faults(`{"notices":{"lose":true}}`)
	s.overdue()
	s.round(0, "orders.close")
	n := s.noticeOf("payment.succeeded", payNo)
	for i := range 3 {
		if r := s.notify(i, n); string(r.body) != "success" {
			t.Errorf("the late success: %v", r)
		}
	}
	s.round(1, "refunds.send")
	s.wantStatus(1001, orderNo, "CANCELLED")
	if got := s.exceptions(); !slices.Equal(got, []string{"auto_refund_failed"}) {
		t.Errorf("exceptions %v; want one auto_refund_failed", got)
	}
	s.wantStock(10, 0, 0)
	s.wantSound()
}

// B107: whatever has money on it outlives every job, however late it is.
func TestNoJobRemovesWhatHasMoneyOnIt(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 100)
	paid, _ := s.paid(1001)
	refunding, _ := s.paid(1001)
	s.refund(1001, refunding, "R-1", 100)
	unknown, doubtful := s.order(1001, 1), s.order(1001, 1)
	s.faults(`{"charge":{"drop_after":true}}`)
	s.must(http.StatusAccepted, payCall(0, 1001, unknown, "mockpay", key("K1")))
	s.faults(`{}`)
	payNo := s.attempt(1001, doubtful, "mockpay")
	s.buyerPays(payNo)
	n := s.noticeOf("payment.succeeded", payNo)
	n.Amount++
	s.faults(`{"query":{"status":500}}`)
	if r := s.notify(0, n); string(r.body) != "success" {
		t.Errorf("wrong money: %v", r)
	}
	for i := range 4 {
		s.advance(24 * time.Hour)
		for _, job := range jobNames(s.instances[0].svc.jobs.Jobs) {
			s.round(i, job)
		}
	}
	for orderNo, status := range map[string]string{paid: "PAID", refunding: "REFUNDING", unknown: "INIT"} {
		s.wantStatus(1001, orderNo, status)
	}
	if n := s.count("SELECT COUNT(*) FROM t_trade WHERE order_no = ?", doubtful); n != 1 {
		t.Errorf("%d records of the wrong money, want 1", n)
	}
	if got := s.exceptions(); !slices.Contains(got, "amount_mismatch") {
		t.Errorf("exceptions %v; want that of the wrong money", got)
	}
	s.wantEffects("close", "", 0)
	s.wantSound()
}
