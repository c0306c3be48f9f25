package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"example.com/oncepay/internal/mockpay"
)

// situation is a row of the contract's table "what a verified success notice does".
type situation struct {
	name    string
	arrange func(s *stack, user int64) (orderNo string, n mockpay.Notice)
	send    func(s *stack, on int, n mockpay.Notice) reply // nil: as channel mockpay
	first   kept                                           // what is kept of the first delivery
	again   kept                                           // and of each one after it
	want    fate                                           // after the first delivery, and after all
}

// Every row of the contract's table: each delivery is acknowledged, kept with what became of it, and the first one alone has
// an effect. (B76, B77, B87, B89, B96)
func TestWhatAVerifiedNoticeDoes(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	var all []situation
	all = append(all, wrongSituations()...)
	all = append(all, paySituations()...)
	all = append(all, endedSituations()...)
	all = append(all, refundSituations()...)
	for i, sit := range all {
		t.Run(sit.name, func(t *testing.T) {
			send := sit.send
			if send == nil {
				send = (*stack).notify
			}
			orderNo, n := sit.arrange(s, int64(2000+i))
			wantAck(t, send(s, 0, n))
			s.wantFate(t, orderNo, sit.want)
			wantAck(t, send(s, 1, n))
			renamed := n
			renamed.NotifyID += "-new" // an id of the channel's decides nothing
			wantAck(t, send(s, 0, renamed))
			s.wantFate(t, orderNo, sit.want)
			got := append(s.notices(n.NotifyID), s.notices(renamed.NotifyID)...)
			if fmt.Sprint(got) != fmt.Sprint([]kept{sit.first, sit.again, sit.again}) {
				t.Errorf("kept of the deliveries: %v; want %v, then %v", got, sit.first, sit.again)
			}
			s.wantSound()
		})
	}
}

var (
	wasApplied  = kept{"applied", ""}
	wasRepeated = kept{"repeated", "dedup"}
	wasParked   = kept{"parked", ""}
)

// success returns an INIT order whose trade is paid, and the notice of it, spoiled.
func success(spoil func(*mockpay.Notice)) func(*stack, int64) (string, mockpay.Notice) {
	return func(s *stack, user int64) (string, mockpay.Notice) {
		orderNo := s.order(user, 1)
		payNo := s.attempt(user, orderNo, "mockpay")
		s.decide(payNo, "pay")
		n := s.noticeOf("payment.succeeded", payNo)
		if spoil != nil {
			spoil(&n)
		}
		return orderNo, n
	}
}

func wrongSituations() []situation {
	wrong := unpaid()
	wrong.payment = "FAILED" // the buyer may begin another attempt
	wrong.forPerson, wrong.credits, wrong.exceptions = 1, 1, "amount_mismatch"
	nothing := wrong
	nothing.credits = 0 // there is nothing to post
	toPerson := kept{"for_person", ""}
	stolen := unpaid()
	stolen.exceptions = "trade_conflict"
	return []situation{
		{"our payment is unknown", success(func(n *mockpay.Notice) { n.OutTradeNo = "nobody-" + n.TradeNo }), nil, wasParked, wasParked, unpaid()},
		{"one minor unit less", success(func(n *mockpay.Notice) { n.Amount-- }), nil, toPerson, wasRepeated, wrong},
		{"one minor unit more", success(func(n *mockpay.Notice) { n.Amount++ }), nil, toPerson, wasRepeated, wrong},
		{"more than a float can tell", success(func(n *mockpay.Notice) { n.Amount = 1<<53 + 1 }), nil, toPerson, wasRepeated, wrong},
		{"amount zero", success(func(n *mockpay.Notice) { n.Amount = 0 }), nil, toPerson, wasRepeated, nothing},
		{"currency differs", success(func(n *mockpay.Notice) { n.Currency = "USD" }), nil, toPerson, wasRepeated, wrong},
		{"merchant differs", success(func(n *mockpay.Notice) { n.MerchantID = "m-somebody" }), nil, toPerson, wasRepeated, wrong},
		{
			"the trade of another order's payment", func(s *stack, user int64) (string, mockpay.Notice) {
				_, n := success(nil)(s, user)
				orderNo := s.order(user, 1)
				n.OutTradeNo = s.attempt(user, orderNo, "mockpay")
				return orderNo, n
			}, nil, kept{"for_person", "dedup"}, kept{"for_person", "dedup"}, stolen,
		},
		{
			"a trade applied to another order", func(s *stack, user int64) (string, mockpay.Notice) {
				_, payNo := s.paid(user)
				n := s.noticeOf("payment.succeeded", payNo)
				orderNo := s.order(user, 1)
				n.OutTradeNo = s.attempt(user, orderNo, "mockpay")
				return orderNo, n
			}, nil, kept{"for_person", "dedup"}, kept{"for_person", "dedup"}, stolen,
		},
	}
}

// applied returns an order paid by this very trade, and moved on by steps.
func applied(steps ...string) func(*stack, int64) (string, mockpay.Notice) {
	return func(s *stack, user int64) (string, mockpay.Notice) {
		orderNo, payNo := s.paid(user)
		for _, verb := range steps {
			s.must(http.StatusOK, s.step(user, orderNo, verb, ""))
		}
		return orderNo, s.noticeOf("payment.succeeded", payNo)
	}
}

func paySituations() []situation {
	shipped, finished, conflict := paidOnce(), paidOnce(), paidOnce()
	shipped.order, finished.order = "SHIPPED", "FINISHED"
	conflict.exceptions = "trade_conflict"
	failed := unpaid()
	failed.payment = "FAILED"
	return []situation{
		{"order INIT", success(nil), nil, wasApplied, wasRepeated, paidOnce()},
		{"this trade was applied before", applied(), nil, wasRepeated, wasRepeated, paidOnce()},
		{"this trade was applied before, order SHIPPED", applied("ship"), nil, wasRepeated, wasRepeated, shipped},
		{"this trade was applied before, order FINISHED", applied("ship", "finish"), nil, wasRepeated, wasRepeated, finished},
		{
			"this trade was applied before, with another amount", func(s *stack, user int64) (string, mockpay.Notice) {
				orderNo, n := applied()(s, user)
				n.Amount--
				return orderNo, n
			}, nil, kept{"for_person", "dedup"}, kept{"for_person", "dedup"}, conflict,
		},
		{
			"the attempt failed", func(s *stack, user int64) (string, mockpay.Notice) {
				orderNo := s.order(user, 1)
				payNo := s.attempt(user, orderNo, "mockpay")
				s.decide(payNo, "fail")
				return orderNo, s.noticeOf("payment.failed", payNo)
			}, nil, wasApplied, kept{"repeated", "state"}, failed,
		},
		{
			"a failure of an older attempt", func(s *stack, user int64) (string, mockpay.Notice) {
				orderNo := s.order(user, 1)
				old := s.attempt(user, orderNo, "mockpay2")
				s.decide(old, "fail")
				s.payWith(user, orderNo, "mockpay")
				return orderNo, s.noticeOf("payment.failed", old)
			}, (*stack).notify2, wasApplied, kept{"repeated", "state"}, paidOnce(),
		},
		{
			"an older state of the same attempt", func(s *stack, user int64) (string, mockpay.Notice) {
				orderNo, payNo := s.paid(user)
				return orderNo, s.noticeOf("payment.closed", payNo)
			}, nil, kept{"stale", "state"}, kept{"stale", "state"}, paidOnce(),
		},
		{
			"a success after the failure of the same attempt", func(s *stack, user int64) (string, mockpay.Notice) {
				orderNo, n := success(nil)(s, user)
				early := n
				early.Event = "payment.failed"
				s.notify(0, early)
				n.NotifyID += "-success"
				return orderNo, n
			}, nil, wasApplied, wasRepeated, paidOnce(),
		},
	}
}

// payWith pays an order through a channel, as the buyer would, and delivers the notice.
func (s *stack) payWith(user int64, orderNo, channel string) (payNo string) {
	s.t.Helper()
	payNo = s.attempt(user, orderNo, channel)
	s.decide(payNo, "pay")
	notify := s.notify
	if channel == "mockpay2" {
		notify = s.notify2
	}
	wantAck(s.t, notify(0, s.noticeOf("payment.succeeded", payNo)))
	return payNo
}

func endedSituations() []situation {
	second := paidOnce()
	second.returned, second.credits = 1, 2
	late := fate{order: "CANCELLED", payment: "SUCCEEDED", returned: 1, credits: 1}
	returned := kept{"applied", "state"}
	return []situation{
		{
			"order already paid through another channel", func(s *stack, user int64) (string, mockpay.Notice) {
				orderNo := s.order(user, 1)
				other := s.attempt(user, orderNo, "mockpay2")
				s.payWith(user, orderNo, "mockpay")
				s.decide(other, "pay")
				return orderNo, s.noticeOf("payment.succeeded", other)
			}, (*stack).notify2, returned, wasRepeated, second,
		},
		{
			"order already paid by another trade of the same attempt", func(s *stack, user int64) (string, mockpay.Notice) {
				orderNo, payNo := s.paid(user)
				n := s.noticeOf("payment.succeeded", payNo)
				n.TradeNo += "-second"
				return orderNo, n
			}, nil, returned, wasRepeated, second,
		},
		{
			"order already paid by a newer attempt on the same channel", func(s *stack, user int64) (string, mockpay.Notice) {
				orderNo, n := success(nil)(s, user)
				n.Event = "payment.failed"
				s.notify(0, n)
				r := s.must(http.StatusCreated, payCall(0, user, orderNo, "mockpay", key("second-%s", orderNo)))
				s.decide(r.field("pay_no"), "pay")
				s.notify(0, s.noticeOf("payment.succeeded", r.field("pay_no")))
				n.Event = "payment.succeeded"
				n.NotifyID += "-success"
				return orderNo, n
			}, nil, returned, wasRepeated, second,
		},
		{
			"order CANCELLED", func(s *stack, user int64) (string, mockpay.Notice) {
				orderNo, n := success(nil)(s, user)
				s.must(http.StatusOK, s.step(user, orderNo, "cancel", ""))
				return orderNo, n
			}, nil, returned, wasRepeated, late,
		},
	}
}

// refundNews returns an order with a refund in flight of so much, and a notice about it, spoiled.
func refundNews(event string, amount int64, spoil func(s *stack, n *mockpay.Notice)) func(*stack, int64) (string, mockpay.Notice) {
	return func(s *stack, user int64) (string, mockpay.Notice) {
		orderNo, refundNo := s.refunding(user, amount)
		n := s.refundNoticeOf(event, refundNo)
		if spoil != nil {
			spoil(s, &n)
		}
		return orderNo, n
	}
}

func refundSituations() []situation {
	part, whole, misfit, unknown, undone := paidOnce(), paidOnce(), paidOnce(), paidOnce(), paidOnce()
	part.refunded = 500
	whole.order, whole.refunded = "REFUNDED", 1999
	misfit.exceptions, unknown.exceptions, undone.exceptions = "refund_mismatch", "unknown_refund", "refund_undone"
	misfitting := kept{"for_person", "state"}
	return []situation{
		{"refund of a part", refundNews("refund.succeeded", 500, nil), nil, wasApplied, wasRepeated, part},
		{"refund of all", refundNews("refund.succeeded", 1999, nil), nil, wasApplied, wasRepeated, whole},
		{"refund that failed", refundNews("refund.failed", 1999, nil), nil, wasApplied, wasRepeated, paidOnce()},
		{"refund that failed after its success", refundNews("refund.failed", 1999, func(s *stack, n *mockpay.Notice) {
			wantAck(s.t, s.notify(0, s.refundNoticeOf("refund.succeeded", n.OutRefundNo)))
			*n = later(*n, time.Second)
		}), nil, wasApplied, wasRepeated, undone},
		{"refund that had failed before its success", refundNews("refund.failed", 1999, func(s *stack, n *mockpay.Notice) {
			wantAck(s.t, s.notify(0, s.refundNoticeOf("refund.succeeded", n.OutRefundNo)))
			*n = later(*n, -time.Second)
		}), nil, kept{"stale", "state"}, kept{"stale", "state"}, whole},
		{"refund nobody asked for", refundNews("refund.succeeded", 500, func(_ *stack, n *mockpay.Notice) { n.OutRefundNo += "x" }), nil, wasParked, wasParked, unknown},
		{"refund of another amount", refundNews("refund.succeeded", 500, func(_ *stack, n *mockpay.Notice) { n.Amount++ }), nil, misfitting, misfitting, misfit},
		{"refund of another trade", refundNews("refund.succeeded", 500, func(_ *stack, n *mockpay.Notice) { n.TradeNo += "x" }), nil, misfitting, misfitting, misfit},
		{"refund of another payment", refundNews("refund.succeeded", 500, func(s *stack, n *mockpay.Notice) {
			_, n.OutTradeNo = s.paid(1)
		}), nil, misfitting, misfitting, misfit},
		{"refund of another channel", refundNews("refund.succeeded", 500, nil), (*stack).notify2, misfitting, misfitting, misfit},
	}
}
