package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/testenv"
)

// A charge whose outcome nobody knows: our process died, or the channel did not answer in time.

// B90: the process dies between the channel's answer and recording it. The buyer pays again with another key, and the notice
// comes before that, after it, or never: one charge under one number, and the order ends PAID.
func TestADeathAfterTheChargeLeavesOneCharge(t *testing.T) {
	for _, notice := range []string{"before", "after", "never"} {
		t.Run("the notice comes "+notice, func(t *testing.T) {
			s := newStack(t, shortLocks()...)
			s.sku(1, 1999, 10)
			orderNo := s.order(1001, 1)
			gate := testenv.NewGate(t)
			first := s.instances[0].mysql.On(testenv.Prefix("COMMIT"), 1, testenv.Action{}) // the intention is committed
			s.instances[0].mysql.On(testenv.Prefix("COMMIT"), 1, testenv.Hold(gate))
			abandoned := s.background(payCall(0, 1001, orderNo, "mockpay", key("K1")))
			gate.WaitEntered(t, 1)
			if first.Hits() != 1 {
				t.Fatal("the channel was called before the intention was committed")
			}
			s.instances[0].die()
			wantUndecided(t, <-abandoned)
			var payNo string
			if err := s.db.QueryRow("SELECT pay_no FROM t_payment").Scan(&payNo); err != nil {
				t.Fatal(err)
			}
			s.decide(payNo, "pay")
			n := s.noticeOf("payment.succeeded", payNo)
			if notice == "before" {
				wantAck(t, s.notify(1, n))
				wantProblem(t, s.unlocked(t, payCall(1, 1001, orderNo, "mockpay", key("K2"))), http.StatusConflict, "order_state_illegal")
			} else if r := s.finally(t, payCall(1, 1001, orderNo, "mockpay", key("K2"))); r.field("pay_no") != payNo {
				t.Errorf("pay again: %v; want attempt %s", r, payNo)
			}
			if notice == "after" {
				wantAck(t, s.notify(1, n))
			}
			s.advance(time.Minute)
			s.round(1, "payments.poll")
			s.instances[0].revive()
			s.wantFate(t, orderNo, paidOnce())
			if got := s.effects("charge", ""); got != 1 {
				t.Errorf("the channel has %d charges, want 1", got)
			}
			s.advance(2 * time.Minute) // past the dead run's lease
			wantProblem(t, s.do(payCall(0, 1001, orderNo, "mockpay", key("K1"))), http.StatusConflict, "order_state_illegal")
			s.wantSound()
		})
	}
}

// unlocked sends a request until no dead instance's lock stands in its way, and returns what the business said.
func (s *stack) unlocked(t *testing.T, c call) reply {
	t.Helper()
	var r reply
	testenv.Eventually(t, setupWait, "the dead instance's lock ends", func() error {
		if r = s.do(c); r.field("code") == "lock_busy" {
			return fmt.Errorf("last answer: %v", r)
		}
		return nil
	})
	return r
}

// unresolved is a channel's way of leaving an outcome open, and what it turns out to have been.
type unresolved struct {
	name   string
	faults string
	then   func(s *stack, payNo string) // what happens at the channel afterwards
	want   fate
}

// B91: the channel answers after our deadline, or not at all. Meanwhile 202 and UNKNOWN and no second charge; the poller finds out
// and applies it as a notice would be.
func TestATimeoutIsNotAFailure(t *testing.T) {
	const late = `{"charge":{"delay_ms":60000,"times":1}}`
	failed := unpaid()
	failed.payment = "FAILED"
	for _, u := range []unresolved{
		{"it had succeeded", late, func(s *stack, payNo string) { s.decide(payNo, "pay") }, paidOnce()},
		{"it had failed", late, func(s *stack, payNo string) { s.decide(payNo, "fail") }, failed},
		{"it waits for the buyer", late, nil, unpaid()},
		{"the channel does not know it", `{"charge":{"status":503,"times":1}}`, nil, failed},
		{"the connection was cut", `{"charge":{"drop_after":true,"times":1}}`, func(s *stack, payNo string) { s.decide(payNo, "pay") }, paidOnce()},
	} {
		t.Run(u.name, func(t *testing.T) {
			s := newStack(t, "REQUEST_TIMEOUT=3s") // a third of it is one call's budget
			s.sku(1, 1999, 10)
			orderNo := s.order(1001, 1)
			s.faults(u.faults)
			r := s.do(payCall(0, 1001, orderNo, "mockpay", key("K1")))
			if r.status != http.StatusAccepted || r.field("status") != "UNKNOWN" {
				t.Fatalf("pay: %v; want 202 UNKNOWN", r)
			}
			payNo := r.field("pay_no")
			s.wantNoSecondCharge(t, orderNo, payNo)
			if u.then != nil {
				u.then(s, payNo)
			}
			for range 2 { // a channel that does not know a trade is asked twice
				s.advance(10 * time.Second)
				testenv.Together(2, func(i int) { s.round(i, "payments.poll") })
			}
			s.wantFate(t, orderNo, u.want)
			wantReplay(t, s.do(payCall(1, 1001, orderNo, "mockpay", key("K1"))), r)
			if u.want.payment == "FAILED" {
				if r := s.do(payCall(0, 1001, orderNo, "mockpay2", key("K9"))); r.status != http.StatusCreated || r.field("pay_no") == payNo {
					t.Errorf("pay after the failure: %v; want a new attempt", r)
				}
			}
			s.wantSound()
		})
	}
}

// wantNoSecondCharge asserts that while an outcome is unknown the same attempt is named, and none starts elsewhere.
func (s *stack) wantNoSecondCharge(t *testing.T, orderNo, payNo string) {
	t.Helper()
	charges := s.effects("charge", "")
	if r := s.do(payCall(1, 1001, orderNo, "mockpay", key("again-%d", charges))); r.status != http.StatusAccepted || r.field("pay_no") != payNo {
		t.Errorf("pay again: %v; want 202 and the same attempt", r)
	}
	r := s.do(payCall(1, 1001, orderNo, "mockpay2", key("elsewhere-%d", charges)))
	wantProblem(t, r, http.StatusConflict, "payment_unresolved")
	if r.header.Get("Retry-After") == "" {
		t.Errorf("%v does not say when to ask again", r)
	}
	if got := s.effects("charge", ""); got != charges {
		t.Errorf("the channel has %d charges, had %d", got, charges)
	}
}

// B91: the poller runs out of tries: an exception and an alarm, once, and still no second charge. When the channel speaks at
// last, its word counts.
func TestAPaymentNobodyKnowsOfEndsWithAPerson(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	s.faults(`{"charge":{"drop_after":true},"query":{"status":503}}`)
	r := s.do(payCall(0, 1001, orderNo, "mockpay", key("K1")))
	if r.status != http.StatusAccepted {
		t.Fatalf("pay: %v; want 202", r)
	}
	payNo := r.field("pay_no")
	const looks = 11
	for range looks - 1 {
		s.advance(3 * time.Hour) // longer than any pause
		testenv.Together(2, func(i int) { s.round(i, "payments.poll") })
	}
	unknown := fate{order: "INIT", payment: "UNKNOWN"}
	s.wantFate(t, orderNo, unknown)
	for range 3 {
		s.advance(3 * time.Hour)
		testenv.Together(2, func(i int) { s.round(i, "payments.poll") })
	}
	unknown.exceptions = "payment_unresolved"
	s.wantFate(t, orderNo, unknown)
	if got := s.alarms(exception.PaymentUnresolved); got != 1 {
		t.Errorf("%d alarms, want 1", got)
	}
	s.wantNoSecondCharge(t, orderNo, payNo)
	if got := s.count("SELECT polls FROM t_payment"); got != looks {
		t.Errorf("the channel was asked %d times, want %d", got, looks)
	}
	s.faults(`{}`)
	s.decide(payNo, "pay")
	wantAck(t, s.notify(0, s.noticeOf("payment.succeeded", payNo)))
	paid := paidOnce()
	paid.exceptions = "payment_unresolved"
	s.wantFate(t, orderNo, paid)
	s.wantSound()
}
