package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/testenv"
)

// A channel that has lost a trade it had confirmed says nothing about the money: the order is not cancelled, a person is asked,
// and only when they have resolved it the order ends.
func TestAForgottenTradeDoesNotCancelItsOrder(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	payNo := s.attempt(1001, orderNo, "mockpay")
	s.faults(`{"query":{"status":404}}`) // a proxy's 404 is no word of the channel
	s.advance(16 * time.Minute)
	s.round(0, "orders.close")
	s.wantStatus(1001, orderNo, "INIT")

	s.faults(`{}`)
	s.useChannel(newChannelServer(t).url) // an empty channel in its place
	s.advance(time.Minute)
	s.round(0, "orders.close")
	s.wantStatus(1001, orderNo, "INIT")
	if got := s.exceptions(); len(got) != 1 || got[0] != "payment_unresolved" {
		t.Fatalf("exceptions %v; want one payment_unresolved", got)
	}
	s.resolveAll(`{"resolution":"the channel says in writing that nothing was paid"}`)
	s.advance(time.Minute)
	s.round(1, "orders.close")
	s.wantStatus(1001, orderNo, "CANCELLED")
	s.wantPayment(1001, payNo, "CLOSED")
	s.wantSound()
}

// resolveAll resolves every open exception with a body.
func (s *stack) resolveAll(body string) {
	s.t.Helper()
	var list struct {
		Data []struct {
			ID int64 `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(s.must(http.StatusOK, call{as: operator, path: "/v1/ops/exceptions?status=open"}).body, &list); err != nil {
		s.t.Fatal(err)
	}
	for _, e := range list.Data {
		s.must(http.StatusOK, call{as: operator, path: fmt.Sprintf("/v1/ops/exceptions/%d/resolve", e.ID), body: body})
	}
}

// Wrong money is held, and an operator sends it back in the step that resolves it: once, and also when it had been resolved
// without. An order that had it stays until then.
func TestHeldMoneyGoesBackOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	payNo := s.attempt(1001, orderNo, "mockpay")
	s.buyerPays(payNo)
	n := s.noticeOf("payment.succeeded", payNo)
	n.Amount = 1900
	wantAck(t, s.notify(0, n))
	s.advance(16 * time.Minute)
	s.round(0, "orders.close")
	s.wantStatus(1001, orderNo, "INIT") // a person has to look first
	path := fmt.Sprintf("/v1/ops/exceptions/%d/resolve", s.count("SELECT MAX(id) FROM t_exception"))
	s.must(http.StatusOK, call{as: operator, path: path, body: `{"resolution":"looked"}`})
	for i := range 3 {
		s.must(http.StatusOK, call{on: i, as: operator, path: path, body: `{"resolution":"back","return_money":true}`})
	}
	s.round(0, "refunds.send")
	s.round(1, "refunds.send")
	if got := s.effects("refund", ""); got != 1 {
		t.Errorf("the channel was asked for %d refunds, want 1", got)
	}
	s.advance(time.Minute)
	s.round(0, "orders.close")
	s.wantStatus(1001, orderNo, "CANCELLED")
	s.wantSound()
}

// B92: an amount near int64's end is too much like any other.
func TestARefundNearTheEndOfNumbersIsTooMuch(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo, _ := s.paid(1001)
	s.must(http.StatusAccepted, refundCall(0, 1001, orderNo, 1, key("one")))
	wantProblem(t, s.do(refundCall(1, 1001, orderNo, 9223372036854775807, key("all"))), http.StatusConflict, "refund_exceeds_paid")
	s.wantSound()
}

// Invariant 8: a claim whose run died is ended by a job, without its client; the same request then runs.
func TestTheClaimOfADeadRunIsReaped(t *testing.T) {
	s := newStack(t, "LOCK_TTL=1s")
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	pay := payCall(0, 1001, orderNo, "mockpay", key("K1"))
	gate := testenv.NewGate(t)
	rule := s.instances[0].mysql.On(testenv.Contains("SET state = 1"), 1, testenv.Hold(gate))
	dead := s.background(pay)
	rule.Wait(t, 1)
	s.instances[0].die()
	gate.Open()
	<-dead
	wantProblem(t, s.do(on(1, pay)), http.StatusConflict, "idempotency_in_progress")
	s.advance(91 * time.Second)
	s.round(1, "keys.reap")
	s.wantSound()
	if r := s.finally(t, on(1, pay)); r.status != http.StatusCreated { // once the dead run's lock has ended
		t.Errorf("the same request again: %v; want 201", r)
	}
	s.wantEffects("charge", "", 1)
	s.instances[0].revive()
	s.wantSound()
}

// The longest notice that is read can be kept too, and a time beyond the calendar is refused, not undecided for ever.
func TestTheEdgesOfANotice(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	payNo := s.attempt(1001, s.order(1001, 1), "mockpay")
	s.buyerPays(payNo)
	n := s.noticeOf("payment.succeeded", payNo)
	body, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	padded := string(body) + strings.Repeat(" ", 64<<10-len(body))
	now := s.instances[0].clock.now()
	wantAck(t, s.deliver(0, "mockpay", config.DevMockpaySecret, now, []byte(padded)))
	late := strings.Replace(string(body), n.OccurredAt.Format(time.RFC3339Nano), "9999-12-31T23:59:59-12:00", 1)
	wantProblem(t, s.deliver(0, "mockpay", config.DevMockpaySecret, now, []byte(late)), http.StatusBadRequest, "notice_invalid")
	s.wantSound()
}

// A Redis that hangs is not MySQL's trouble: requests may still be sent here.
func TestAHangingRedisLeavesTheServiceReady(t *testing.T) {
	s := newStack(t)
	for _, i := range s.instances {
		i.redis.Blackhole(true)
	}
	for range 3 {
		if r := s.do(call{path: "/readyz"}); r.status != http.StatusOK || r.field("status") != "degraded" {
			t.Errorf("readyz: %v; want 200 and degraded", r)
		}
	}
	if r := s.do(call{method: http.MethodHead, path: "/healthz"}); r.status != http.StatusOK {
		t.Errorf("HEAD /healthz: %v", r)
	}
	for _, i := range s.instances {
		i.redis.Blackhole(false)
	}
	s.wantSound()
}
