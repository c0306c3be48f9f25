package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/testenv"
)

// B07, B91: a 5xx of the channel is neither a failure nor the key's business: 202, the same again for the same key, and the
// poller finds out under the same pay_no, whether the channel took the charge or not.
func TestAnUnknownChargeIsAskedAboutAndNotRepeated(t *testing.T) {
	for fault, becomes := range map[string]string{`"status_after":503`: "PENDING", `"drop_after":true`: "PENDING", `"status":503`: "FAILED"} {
		t.Run(fault, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 1999, 10)
			orderNo := s.order(1001, 1)
			s.faults(`{"charge":{` + fault + `,"times":1}}`)
			k2 := payCall(0, 1001, orderNo, "mockpay", key("K2"))
			first := s.must(http.StatusAccepted, k2)
			payNo := first.field("pay_no")
			if first.field("status") != "UNKNOWN" {
				t.Errorf("got %v; want UNKNOWN", first)
			}
			if r := s.do(payCall(1, 1001, orderNo, "mockpay", key("K3"))); r.status != http.StatusAccepted || r.field("pay_no") != payNo {
				t.Errorf("another key meanwhile: %v; want the attempt that is unknown", r)
			}
			for range 2 { // the second look settles what the channel does not know
				s.advance(10 * time.Second)
				s.round(1, "payments.poll")
			}
			s.wantPayment(1001, payNo, becomes)
			wantReplay(t, s.do(on(1, k2)), first)
			if becomes == "FAILED" {
				payNo = s.must(http.StatusCreated, payCall(1, 1001, orderNo, "mockpay", key("K4"))).field("pay_no")
			}
			s.settle(payNo)
			s.wantStatus(1001, orderNo, "PAID")
			s.wantEffects("charge", "", 1)
			s.wantSound()
		})
	}
}

// While the outcome on one channel is not known, nothing starts on the other: the money may be on its way.
func TestAnUnknownAttemptBlocksTheOtherChannel(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	s.faults(`{"charge":{"status_after":500,"times":1}}`)
	s.must(http.StatusAccepted, payCall(0, 1001, orderNo, "mockpay", key("K1")))
	other := payCall(1, 1001, orderNo, "mockpay2", key("K2"))
	r := s.do(other)
	wantProblem(t, r, http.StatusConflict, "payment_unresolved")
	if r.header.Get("Retry-After") == "" || r.field("retryable") != "true" || r.field("layer") != "state" {
		t.Errorf("%v does not say when to ask again", r)
	}
	s.wantEffects("charge", "", 1)
	s.advance(10 * time.Second)
	s.round(0, "payments.poll")
	if r := s.do(other); r.status != http.StatusCreated { // the refusal was not stored
		t.Errorf("after the poller's look: %v; want the attempt", r)
	}
	s.wantSound()
}

// B91: the channel never says what became of a charge. Nothing is guessed: a person is asked, even if the first who wants to ask
// dies over it, and the order stays.
func TestAnOutcomeNobodyTellsBecomesAnException(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	s.faults(`{"charge":{"drop_after":true},"query":{"status":500}}`)
	payNo := s.must(http.StatusAccepted, payCall(0, 1001, orderNo, "mockpay", key("K1"))).field("pay_no")
	for _, i := range s.instances {
		i.mysql.On(testenv.Contains("INSERT INTO t_exception"), 1, testenv.CutBefore())
	}
	const looks = 20 // more than the schedule has
	for i := range looks {
		s.advance(3 * time.Hour) // past any pause of the schedule
		s.round(i, "payments.poll")
		s.round(i, "orders.close")
	}
	if got := s.exceptions(); len(got) != 1 || got[0] != "payment_unresolved" {
		t.Errorf("exceptions %v; want one payment_unresolved", got)
	}
	s.wantPayment(1001, payNo, "UNKNOWN")
	s.wantStatus(1001, orderNo, "INIT")
	s.faults(`{}`)
	s.settle(payNo) // the notice comes after all
	s.wantStatus(1001, orderNo, "PAID")
	s.wantSound()
}

// B58: clients go away in the middle of paying. Whatever each left behind, the same request once more has one attempt and one
// trade.
func TestAClientThatGoesAwayLeavesOneAttempt(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 100)
	const buyers = 60
	calls := make([]call, buyers)
	for i := range calls {
		user := int64(1000 + i)
		calls[i] = payCall(i, user, s.order(user, 1), "mockpay", key("K1"))
	}
	testenv.Together(buyers, func(i int) {
		c := calls[i]
		ctx, cancel := context.WithTimeout(context.Background(), rand.N(60*time.Millisecond))
		defer cancel()
		c.ctx = ctx
		s.do(c) // whatever it gets: nobody reads it
	})
	seen := make(map[string]bool)
	for i, c := range calls {
		r := s.finally(t, on(i+1, c))
		if seen[r.field("pay_no")] || r.status != http.StatusCreated {
			t.Errorf("%v; want an attempt of its own", r)
		}
		seen[r.field("pay_no")] = true
	}
	s.wantEffects("charge", "", buyers)
	if n := s.count("SELECT COUNT(*) FROM t_payment"); n != buyers {
		t.Errorf("%d attempts, want %d", n, buyers)
	}
	s.wantSound()
}

// The breaker: after five calls without an answer the sixth is refused at once, nothing is sent, and its key still works when
// the channel does. The other channel and the other instance are not concerned.
func TestAChannelThatIsDownFailsFast(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 100)
	s.faults(`{"charge":{"status":500}}`)
	for i := range 5 {
		s.must(http.StatusAccepted, payCall(0, 1001, s.order(1001, 1), "mockpay", key("K%d", i)))
	}
	orderNo := s.order(1001, 1)
	sixth := payCall(0, 1001, orderNo, "mockpay", key("K6"))
	for range 2 {
		r := s.do(sixth)
		wantProblem(t, r, http.StatusServiceUnavailable, "channel_unavailable")
		if r.header.Get("Retry-After") == "" || r.field("retryable") != "true" {
			t.Errorf("%v does not say when to ask again", r)
		}
	}
	if n := s.arrivals("charge", ""); n != 5 {
		t.Errorf("%d charges came to the channel, want 5", n)
	}
	if shown := s.do(call{path: "/metrics"}); !strings.Contains(string(shown.body), `channel_down{calls="moves",channel="mockpay"} 1`) {
		t.Error("the metrics do not show that mockpay is down")
	}
	if log := s.instances[0].logs.String(); !strings.Contains(log, "breaker_is=open") {
		t.Error("the log has no alarm")
	}
	s.faults(`{}`)
	s.must(http.StatusCreated, payCall(0, 1001, orderNo, "mockpay2", key("other-channel"))) // what was never sent blocks nothing
	if r := s.do(on(1, sixth)); r.status != http.StatusCreated || r.replayed != "false" {
		t.Errorf("the same key on an instance whose channel works: %v; want the first run", r)
	}
	s.wantEffects("charge", "", 2)
	if n := s.count("SELECT COUNT(*) FROM t_payment WHERE order_no = ? AND open_key IS NOT NULL", orderNo); n != 2 {
		t.Errorf("%d open attempts, want one on each channel", n)
	}
	s.wantSound()
}

// B63: the channel answers after our deadline. 202 within it, the same for the same key, and one trade in the end.
func TestAChannelSlowerThanTheDeadline(t *testing.T) {
	s := newStack(t, "REQUEST_TIMEOUT=1s", "LOCK_WAIT=200ms")
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	s.faults(`{"charge":{"delay_ms":3000,"times":1}}`)
	k1 := payCall(0, 1001, orderNo, "mockpay", key("K1"))
	first := s.must(http.StatusAccepted, k1)
	if first.took > time.Second {
		t.Errorf("the answer took %v, longer than the deadline", first.took)
	}
	wantReplay(t, s.do(on(1, k1)), first)
	s.advance(10 * time.Second)
	s.round(1, "payments.poll")
	payNo := first.field("pay_no")
	s.wantPayment(1001, payNo, "PENDING")
	s.settle(payNo)
	s.wantStatus(1001, orderNo, "PAID")
	if n := s.arrivals("charge", ""); n != 1 {
		t.Errorf("%d charges came to the channel, want 1", n)
	}
	s.wantSound()
}
