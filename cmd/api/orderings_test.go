package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"example.com/oncepay/internal/mockpay"
	"example.com/oncepay/internal/testenv"
)

// permutations returns every order of n things, as indexes.
func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, shorter := range permutations(n - 1) {
		for at := range n {
			p := append(append(append([]int(nil), shorter[:at]...), n-1), shorter[at:]...)
			all = append(all, p)
		}
	}
	return all
}

// B85: failed, closed and succeeded of one attempt whose money arrived, in every order, in turn and at once, with equal and with
// different seconds, the success the oldest or the newest: the money decides.
func TestTheMoneyDecidesInWhateverOrderTheNewsCome(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	user := int64(1000)
	for _, apart := range []time.Duration{0, time.Second, -time.Second} {
		for _, order := range permutations(3) {
			for _, atOnce := range []bool{false, true} {
				user++
				orderNo, n := s.offered(user)
				n.OccurredAt = n.OccurredAt.Truncate(time.Second)
				var news [3]mockpay.Notice
				for i, event := range []string{"payment.failed", "payment.closed", "payment.succeeded"} {
					news[i] = later(n, time.Duration(i)*apart)
					news[i].Event, news[i].NotifyID = event, n.NotifyID+"-"+event
				}
				if atOnce {
					testenv.Together(6, func(i int) { wantAck(t, s.notify(i, news[order[i%3]])) })
				} else {
					for i, k := range order {
						wantAck(t, s.notify(i, news[k]))
					}
				}
				s.wantFate(t, orderNo, paidOnce())
				if t.Failed() {
					t.Fatalf("order %v, %v apart, at once: %v", order, apart, atOnce)
				}
			}
		}
	}
	s.wantSound()
}

// B85: the poller has applied the payment; the late success, the refund's success and their repeats come in every order.
func TestLateNewsInAnyOrderLeaveOneFinalState(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	user := int64(1000)
	for _, amount := range []int64{500, 1999} {
		for _, order := range permutations(4) {
			user++
			orderNo, n := s.offered(user)
			s.advance(time.Minute)
			s.round(0, "payments.poll")
			refundNo := s.must(http.StatusAccepted, refundCall(0, user, orderNo, amount, key("refund-%d", user))).field("refund_no")
			s.round(0, "refunds.send")
			refund := s.refundNoticeOf("refund.succeeded", refundNo)
			for i, k := range order {
				wantAck(t, s.notify(i, []mockpay.Notice{n, n, refund, refund}[k]))
			}
			want := paidOnce()
			want.refunded = int(amount)
			if amount == 1999 {
				want.order = "REFUNDED"
			}
			s.wantFate(t, orderNo, want)
			s.advance(-time.Minute)
		}
	}
	s.wantSound()
}

// scenario is an order with a failed older attempt on mockpay2 and a paid one on mockpay that somebody, not this service, has
// refunded under refundNo.
type scenario struct {
	user     int64
	orderNo  string
	payNo    string
	refundNo string
	events   [4]func()
}

// The events of a scenario, by index.
var eventNames = [4]string{"created", "failed of an older attempt", "succeeded", "refunded"}

func (s *stack) scenario(t *testing.T, user int64) *scenario {
	t.Helper()
	sc := &scenario{user: user, orderNo: s.order(user, 1), refundNo: fmt.Sprintf("by-hand-%d", user)}
	older := s.attempt(user, sc.orderNo, "mockpay2")
	s.decide(older, "fail")
	failed := s.noticeOf("payment.failed", older)
	payNo, finish := s.early(t, user, sc.orderNo)
	sc.payNo = payNo
	succeeded := s.noticeOf("payment.succeeded", payNo)
	refunded := s.noticeOf("refund.succeeded", payNo)
	refunded.OutRefundNo = sc.refundNo
	sc.events = [4]func(){
		func() {
			if r := finish(); r.status != http.StatusCreated {
				t.Errorf("pay: %v", r)
			}
		},
		func() { wantAck(t, s.notify2(1, failed)) },
		func() { wantAck(t, s.notify(1, succeeded)) },
		func() { wantAck(t, s.notify(1, refunded)) },
	}
	return sc
}

// Item 9 of the issue, B89: every permutation of created, failed of an older attempt, succeeded and refunded finds one final
// state. The refund is none of ours at first, so that the order is PAID, credited once, and not shipped before a person has
// looked; when the refund appears here under its number, the kept notice counts, and the order is REFUNDED.
func TestEveryPermutationFindsOneFinalState(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	for i, order := range permutations(4) {
		sc := s.scenario(t, int64(1000+i))
		for _, k := range order {
			sc.events[k]()
		}
		s.decide(sc.payNo, "pay")
		s.retryKept()
		blocked := paidOnce()
		blocked.exceptions = "unknown_refund"
		s.wantFate(t, sc.orderNo, blocked)
		wantProblem(t, s.do(s.step(sc.user, sc.orderNo, "ship", "")), http.StatusConflict, "order_blocked")
		s.adoptRefund(sc)
		s.retryKept()
		returned := blocked
		returned.order, returned.refunded = "REFUNDED", 1999
		s.wantFate(t, sc.orderNo, returned)
		if t.Failed() {
			t.Fatalf("in the order %s, %s, %s, %s", eventNames[order[0]], eventNames[order[1]], eventNames[order[2]], eventNames[order[3]])
		}
	}
	if got := s.effects("refund", ""); got != 24 {
		t.Errorf("the channel has %d refunds, want one for each order", got)
	}
	s.wantSound()
}

// retryKept lets kept notices be tried again on both instances.
func (s *stack) retryKept() {
	s.advance(5 * time.Second)
	testenv.Together(2, func(i int) { s.round(i, "notices.retry") })
}

// adoptRefund makes the refund that was made at the channel one of ours, under its number.
func (s *stack) adoptRefund(sc *scenario) {
	s.t.Helper()
	r := s.at(http.MethodPost, "/v1/refunds", fmt.Sprintf(`{"merchant_id":%q,"out_refund_no":%q,"out_trade_no":%q,"amount":1999,"notify_url":""}`,
		mockpayMerchant, sc.refundNo, sc.payNo))
	if r.status != http.StatusOK {
		s.t.Fatalf("refund at the channel: %v", r)
	}
	s.at(http.MethodPost, "/v1/refunds/"+sc.refundNo+"/succeed?notify=off", "")
	s.must(http.StatusAccepted, call{as: buyer(sc.user), path: "/v1/orders/" + sc.orderNo + "/refunds", key: key("adopt-%s", sc.orderNo),
		body: fmt.Sprintf(`{"refund_no":%q,"amount":1999,"reason":"refunded by hand"}`, sc.refundNo)})
}

// B89: a refund comes before the payment, or just after it, and shipping races with it: the order is never shipped while the
// exception is open, and is once a person has resolved it.
func TestShippingRacesWithARefundNobodyAskedFor(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	for user := int64(1000); user < 1020; user++ {
		orderNo, n := s.offered(user)
		refund := n
		refund.Event, refund.OutRefundNo = "refund.succeeded", "by-hand-"+n.TradeNo
		if user%2 == 0 {
			wantAck(t, s.notify(0, refund))
			testenv.Together(2, func(i int) {
				if i == 0 {
					wantAck(t, s.notify(0, n))
				} else {
					wantProblemOneOf(t, s.do(on(1, s.step(user, orderNo, "ship", ""))), "order_state_illegal", "order_blocked")
				}
			})
			wantProblem(t, s.do(s.step(user, orderNo, "ship", "")), http.StatusConflict, "order_blocked")
			id := s.count("SELECT id FROM t_exception WHERE order_no = ?", orderNo)
			s.must(http.StatusOK, call{as: operator, path: fmt.Sprintf("/v1/ops/exceptions/%d/resolve", id), body: `{"resolution":"the notice was an error"}`})
			s.must(http.StatusOK, s.step(user, orderNo, "ship", ""))
			continue
		}
		wantAck(t, s.notify(0, n))
		var shipped reply
		testenv.Together(2, func(i int) {
			if i == 0 {
				wantAck(t, s.notify(0, refund))
			} else {
				shipped = s.do(on(1, s.step(user, orderNo, "ship", "")))
			}
		})
		if shipped.status != http.StatusOK {
			wantProblem(t, shipped, http.StatusConflict, "order_blocked")
		}
		if got := s.exceptions(); len(got) == 0 {
			t.Error("nobody is asked")
		}
	}
	s.wantSound()
}

func wantProblemOneOf(t *testing.T, r reply, codes ...string) {
	t.Helper()
	for _, code := range codes {
		if r.status == http.StatusConflict && r.field("code") == code {
			return
		}
	}
	t.Errorf("got %v; want a 409 of %v", r, codes)
}

// B89: the attempt's closing comes before its money: PAID once, and the old closing changes nothing afterwards.
func TestAClosingBeforeTheMoneyChangesNothing(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	orderNo, n := s.offered(1001)
	closed := later(n, -time.Second)
	closed.Event = "payment.closed"
	wantAck(t, s.notify(0, closed))
	wantAck(t, s.notify(1, n))
	wantAck(t, s.notify(0, closed))
	s.wantFate(t, orderNo, paidOnce())
	s.wantSound()
}
