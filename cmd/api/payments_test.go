package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

// buyerPays pays an attempt's trade at the channel. No notice is sent: the test or the poller brings the news.
func (s *stack) buyerPays(payNo string) {
	s.t.Helper()
	if r := s.at(http.MethodPost, "/v1/trades/"+payNo+"/pay?notify=off", ""); r.status != http.StatusOK {
		s.t.Fatalf("pay: %v", r)
	}
}

// settle pays an attempt and delivers its success to both instances, one after the other.
func (s *stack) settle(payNo string) {
	s.t.Helper()
	s.buyerPays(payNo)
	n := s.noticeOf("payment.succeeded", payNo)
	for i := range s.instances[:2] {
		if r := s.notify(i, n); string(r.body) != "success" {
			s.t.Errorf("success of %s: %v", payNo, r)
		}
	}
}

// wantPayment asserts an attempt's status as its owner sees it.
func (s *stack) wantPayment(user int64, payNo, status string) {
	s.t.Helper()
	if r := s.do(call{as: buyer(user), path: "/v1/payments/" + payNo}); r.field("status") != status {
		s.t.Errorf("payment %v; want %s", r, status)
	}
}

// wantStatus asserts an order's status.
func (s *stack) wantStatus(user int64, orderNo, status string) {
	s.t.Helper()
	if got := s.status(user, orderNo); got != status {
		s.t.Errorf("order is %s; want %s", got, status)
	}
}

// wantEffects asserts how often something really happened at the channel: for one number, or in all for "".
func (s *stack) wantEffects(kind, number string, want int) {
	s.t.Helper()
	if got := s.effects(kind, number); got != want {
		s.t.Errorf("the channel had %d effects %s of %q; want %d", got, kind, number, want)
	}
}

// arrivals counts how often a call came to the channel, whatever became of it: for one number, or in all for "".
func (s *stack) arrivals(kind, number string) int {
	s.t.Helper()
	var log struct {
		Arrivals []struct {
			Kind    string `json:"kind"`
			Number  string `json:"number"`
			Arrived int    `json:"arrived"`
		} `json:"arrivals"`
	}
	if err := json.Unmarshal(s.at(http.MethodGet, "/v1/effects", "").body, &log); err != nil {
		s.t.Fatal(err)
	}
	n := 0
	for _, a := range log.Arrivals {
		if a.Kind == kind && (number == "" || a.Number == number) {
			n += a.Arrived
		}
	}
	return n
}

// B11: eight pays of one order under eight keys, at once on both instances, are one attempt and one trade; each key keeps its
// answer. With Redis down MySQL alone does it (B41).
func TestPaysUnderNewKeysAreOneAttempt(t *testing.T) {
	for _, redis := range []outage{redisUp, redisDown} {
		t.Run(string(redis), func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 1999, 10)
			orderNo := s.order(1001, 1)
			disturb(t, s, redis)
			pay := func(i int) call { return payCall(i, 1001, orderNo, "mockpay", key("K%d", i)) }
			replies := s.all(8, pay)
			payNo := replies[0].field("pay_no")
			for i, r := range replies {
				if r.status != http.StatusCreated || r.field("pay_no") != payNo || r.field("pay_url") == "" {
					t.Errorf("got %v; want 201 and attempt %s", r, payNo)
				}
				wantReplay(t, s.do(on(i+1, pay(i))), r)
			}
			if r := s.do(pay(9)); r.field("pay_no") != payNo { // the open attempt is given again
				t.Errorf("a new key in turn: %v; want attempt %s", r, payNo)
			}
			s.wantEffects("charge", "", 1)
			s.settle(payNo)
			s.wantStatus(1001, orderNo, "PAID")
			s.wantPayment(1001, payNo, "SUCCEEDED")
			s.wantSound()
		})
	}
}

// B01, B03: a key of a payment or a refund belongs to one caller, one path and one query.
func TestMoneyKeysBelongToOneCallerAndPath(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 100)
	unpaid := func(user int64) string { return s.order(user, 1) }
	paid := func(user int64) string { orderNo, _ := s.paid(user); return orderNo }
	cases := map[string]struct {
		order func(user int64) string
		ask   func(on int, user int64, orderNo, k string) call
	}{
		"pay":    {unpaid, func(on int, user int64, o, k string) call { return payCall(on, user, o, "mockpay", k) }},
		"refund": {paid, func(on int, user int64, o, k string) call { return refundCall(on, user, o, 10, k) }},
	}
	for name, c := range cases {
		k1 := key("%s-K1", name)
		one := c.ask(0, 1001, c.order(1001), k1)
		other := c.ask(1, 1001, c.order(1001), k1)
		theirs := c.ask(0, 1002, c.order(1002), k1)
		replies := s.all(2, func(i int) call { return []call{one, theirs}[i] })
		for i, r := range replies {
			if r.status >= http.StatusMultipleChoices || r.replayed != "false" {
				t.Errorf("%s: caller %d: %v; want a result of their own", name, i, r)
			}
			if strings.Contains(string(r.body), strings.Split([]call{theirs, one}[i].path, "/")[3]) {
				t.Errorf("%s: %v names the other's order", name, r)
			}
		}
		wantProblem(t, s.do(other), http.StatusUnprocessableEntity, "idempotency_key_reused")
		query := one
		query.path += "?a=1"
		wantProblem(t, s.do(query), http.StatusUnprocessableEntity, "idempotency_key_reused")
		wantReplay(t, s.do(on(1, one)), replies[0])
		wantReplay(t, s.do(on(1, theirs)), replies[1])
		wantProblem(t, s.lookUp(1003, k1), http.StatusNotFound, "idempotency_key_not_found")
		other.key = key("%s-K2", name)
		if r := s.do(other); r.status != replies[0].status || string(r.body) == string(replies[0].body) {
			t.Errorf("%s under a key of its own: %v", name, r)
		}
	}
	s.wantSound()
}

// B04: a failed attempt stays its key's answer; a new key opens a new attempt, and one charge succeeds.
func TestAfterAFailureANewKeyOpensANewAttempt(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	k3 := payCall(0, 1001, orderNo, "mockpay", key("K3"))
	first := s.must(http.StatusCreated, k3)
	s.at(http.MethodPost, "/v1/trades/"+first.field("pay_no")+"/fail?notify=off", "")
	s.advance(time.Minute) // past the poller's first look
	s.round(1, "payments.poll")
	s.wantPayment(1001, first.field("pay_no"), "FAILED")
	wantReplay(t, s.do(on(1, k3)), first)
	second := s.must(http.StatusCreated, payCall(1, 1001, orderNo, "mockpay", key("K4")))
	if second.field("pay_no") == first.field("pay_no") {
		t.Errorf("K4 got the failed attempt again: %v", second)
	}
	s.settle(second.field("pay_no"))
	s.wantStatus(1001, orderNo, "PAID")
	s.wantEffects("pay", "", 1)
	s.wantSound()
}

// What cannot be paid is refused with its reason. What the business decided is the key's answer, all else is not.
func TestWhatCannotBePaid(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 100)
	s.sku(2, 0, 100) // its orders are PAID at once
	cancelled, open := s.order(1001, 1), s.order(1001, 1)
	s.must(http.StatusOK, s.step(1001, cancelled, "cancel", ""))
	paid, _ := s.paid(1001)
	asOperator := payCall(0, 1001, open, "mockpay", key("ops"))
	asOperator.as = operator
	noKey := payCall(0, 1001, open, "mockpay", "")
	noKey.method = http.MethodPost
	extra := payCall(0, 1001, open, "mockpay", key("extra"))
	extra.body = `{"channel":"mockpay","amount":1}`
	for name, c := range map[string]struct {
		call   call
		status int
		code   string
		final  bool
	}{
		"cancelled":        {payCall(0, 1001, cancelled, "mockpay", key("cancelled")), http.StatusConflict, "order_state_illegal", true},
		"paid":             {payCall(0, 1001, paid, "mockpay2", key("paid")), http.StatusConflict, "order_state_illegal", true},
		"free":             {payCall(0, 1001, s.order(1001, 2), "mockpay", key("free")), http.StatusConflict, "order_state_illegal", true},
		"another's":        {payCall(0, 1002, open, "mockpay", key("theirs")), http.StatusNotFound, "order_not_found", false},
		"operator":         {asOperator, http.StatusNotFound, "order_not_found", false},
		"no such order":    {payCall(0, 1001, strings.Repeat("0", 32), "mockpay", key("none")), http.StatusNotFound, "order_not_found", false},
		"no order number":  {payCall(0, 1001, "x", "mockpay", key("bad-no")), http.StatusNotFound, "order_not_found", false},
		"no such channel":  {payCall(0, 1001, open, "cash", key("cash")), http.StatusBadRequest, "channel_unknown", false},
		"no channel":       {payCall(0, 1001, open, "", key("empty")), http.StatusBadRequest, "channel_unknown", false},
		"no key":           {noKey, http.StatusBadRequest, "idempotency_key_required", false},
		"a field too many": {extra, http.StatusBadRequest, "body_invalid", false},
	} {
		first := s.do(c.call)
		wantProblem(t, first, c.status, c.code)
		if again := s.do(on(1, c.call)); c.final {
			wantReplay(t, again, first)
		} else if wantProblem(t, again, c.status, c.code); again.replayed == "true" {
			t.Errorf("%s: %v was stored", name, again)
		}
	}
	s.wantEffects("charge", "", 1) // of the paid one
	s.advance(time.Hour)           // past the time to pay; the job has not run yet
	late := payCall(0, 1001, open, "mockpay", key("late"))
	first := s.do(late)
	wantProblem(t, first, http.StatusConflict, "order_expired")
	wantReplay(t, s.do(on(1, late)), first)
	s.wantEffects("charge", "", 1)
	s.wantSound()
}

// A channel's definite no ends the attempt and is the key's answer; another key tries again.
func TestADeclinedChargeEndsItsAttempt(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	s.faults(`{"charge":{"status":422,"times":1}}`)
	k1 := payCall(0, 1001, orderNo, "mockpay", key("K1"))
	first := s.do(k1)
	wantProblem(t, first, http.StatusPaymentRequired, "payment_declined")
	wantReplay(t, s.do(on(1, k1)), first)
	if n := s.count("SELECT COUNT(*) FROM t_payment WHERE status = 4"); n != 1 {
		t.Errorf("%d attempts FAILED, want 1", n)
	}
	s.settle(s.must(http.StatusCreated, payCall(1, 1001, orderNo, "mockpay", key("K2"))).field("pay_no"))
	s.wantStatus(1001, orderNo, "PAID")
	s.wantSound()
}

// B10: after 720 hours the keys are gone, and the order, the open attempt and the refund numbers still say what was.
func TestAfterTheirRetentionMoneyIsStillMovedOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	paid, paidNo := s.paid(1001)
	open := s.order(1001, 1)
	first := s.must(http.StatusCreated, payCall(0, 1001, open, "mockpay", key("open")))
	own := refundCall(0, 1001, paid, 30, key("own"))
	own.body = `{"refund_no":"R-1","amount":30,"reason":"test"}`
	keyed := refundCall(0, 1001, paid, 20, key("keyed"))
	refunds := []reply{s.must(http.StatusAccepted, own), s.must(http.StatusAccepted, keyed)}
	for _, k := range []string{key("open"), key("own"), key("keyed")} {
		record := s.lookUp(1001, k)
		made, _ := time.Parse(time.RFC3339, record.field("created_at"))
		ends, err := time.Parse(time.RFC3339, record.field("expires_at"))
		if err != nil || ends.Sub(made) != 720*time.Hour {
			t.Errorf("the record does not show when it expires: %v", record)
		}
	}
	s.advance(720*time.Hour + time.Minute)
	wantProblem(t, s.lookUp(1001, key("own")), http.StatusNotFound, "idempotency_key_not_found")
	wantProblem(t, s.do(payCall(1, 1001, paid, "mockpay", key("pay-%s-mockpay", paid))), http.StatusConflict, "order_state_illegal")
	if r := s.do(payCall(1, 1001, open, "mockpay", key("open"))); r.status != http.StatusCreated || r.field("pay_no") != first.field("pay_no") {
		t.Errorf("the open attempt again: %v", r)
	}
	for i, c := range []call{own, keyed} {
		if r := s.do(on(1, c)); r.status != http.StatusAccepted || r.field("refund_no") != refunds[i].field("refund_no") {
			t.Errorf("the refund again: %v; want %v", r, refunds[i])
		}
	}
	s.round(0, "refunds.send")
	s.wantEffects("charge", "", 2)
	s.wantEffects("pay", paidNo, 1)
	s.wantEffects("refund", "", 2)
	s.wantSound()
}
