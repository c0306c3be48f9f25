package main

import (
	"net/http"
	"testing"

	"example.com/oncepay/internal/testenv"
)

// One notice delivered twenty times at once on two instances: PAID once, credited once, one message, and every delivery is
// acknowledged in the channel's exact bytes. (B73, B82)
func TestTwentyDeliveriesOfOneNoticePayOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	payNo := s.attempt(1001, orderNo, "mockpay")
	s.at(http.MethodPost, "/v1/trades/"+payNo+"/pay?notify=off", "")
	n := s.noticeOf("payment.succeeded", payNo)
	replies := make([]reply, 20)
	testenv.Together(20, func(i int) { replies[i] = s.notify(i, n) })
	for _, r := range replies {
		if r.status != http.StatusOK || string(r.body) != "success" {
			t.Errorf("delivery answered %v; want 200 and success", r)
		}
	}
	if got := s.status(1001, orderNo); got != "PAID" {
		t.Errorf("order is %s, want PAID", got)
	}
	if got := [3]int{
		s.count("SELECT COUNT(*) FROM t_trade"), s.count("SELECT COUNT(*) FROM t_ledger_entry"),
		s.count("SELECT COUNT(*) FROM t_outbox WHERE topic = 'order.paid'"),
	}; got != [3]int{1, 2, 1} {
		t.Errorf("trades, ledger entries, messages = %v; want 1, 2, 1", got)
	}
	if got := s.count("SELECT COUNT(*) FROM t_channel_notice"); got != 20 {
		t.Errorf("%d notices kept, want 20", got)
	}
	s.wantSound()
}

// Late money: the order was cancelled, then its success arrives three times. It is recorded and goes back once, against its own
// trade; order and stock stay. (B87)
func TestLateMoneyGoesBackOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	payNo := s.attempt(1001, orderNo, "mockpay")
	s.must(http.StatusOK, call{as: buyer(1001), method: http.MethodPost, path: "/v1/orders/" + orderNo + "/cancel"})
	s.at(http.MethodPost, "/v1/trades/"+payNo+"/pay?notify=off", "")
	n := s.noticeOf("payment.succeeded", payNo)
	for i := range 3 {
		if r := s.notify(i, n); string(r.body) != "success" {
			t.Errorf("delivery %d: %v", i, r)
		}
	}
	s.round(0, "refunds.send")
	s.round(1, "refunds.send")
	if got := s.effects("refund", ""); got != 1 {
		t.Errorf("the channel was asked for %d refunds, want 1", got)
	}
	if got := s.status(1001, orderNo); got != "CANCELLED" {
		t.Errorf("order is %s, want CANCELLED", got)
	}
	refundNo := "ra1:mockpay:" + s.tradeNo(payNo)
	s.at(http.MethodPost, "/v1/refunds/"+refundNo+"/succeed?notify=off", "")
	if r := s.notify(1, s.refundNoticeOf("refund.succeeded", refundNo)); string(r.body) != "success" {
		t.Errorf("refund notice: %v", r)
	}
	if r := s.must(http.StatusOK, call{as: buyer(1001), path: "/v1/refunds/" + refundNo}); r.field("status") != "SUCCESS" || r.field("auto") != "true" {
		t.Errorf("refund %v; want an automatic SUCCESS", r)
	}
	s.wantSound()
}
