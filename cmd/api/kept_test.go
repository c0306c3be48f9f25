package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/testenv"
)

// What is kept of notices, and what happens to it later.

// B70, B84: a notice that comes before its payment is kept, and applied when the payment is there. Its freshness was judged
// when it came; the same HTTP request sent again is judged anew.
func TestANoticeBeforeItsPaymentIsAppliedWhenThatAppears(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	orderNo := s.order(1001, 1)
	payNo, finish := s.early(t, 1001, orderNo)
	n := s.noticeOf("payment.succeeded", payNo)
	sent := s.instances[1].clock.now()
	wantAck(t, s.deliver(1, "mockpay", config.DevMockpaySecret, sent, s.marshal(n)))
	s.advance(time.Minute)
	s.round(1, "notices.retry") // the payment is still not there
	if got := s.notices(n.NotifyID); fmt.Sprint(got) != fmt.Sprint([]kept{wasParked}) {
		t.Errorf("kept %v, want one parked notice", got)
	}
	if r := finish(); r.status != http.StatusCreated || r.field("pay_no") != payNo {
		t.Fatalf("pay: %v", r)
	}
	s.wantFate(t, orderNo, unpaid())
	s.decide(payNo, "pay")
	s.advance(10 * time.Minute) // past any tolerance
	testenv.Together(2, func(i int) { s.round(i, "notices.retry") })
	s.wantFate(t, orderNo, paidOnce())
	if got := s.notices(n.NotifyID); fmt.Sprint(got) != fmt.Sprint([]kept{wasApplied}) {
		t.Errorf("kept %v, want it applied", got)
	}
	r := s.deliver(1, "mockpay", config.DevMockpaySecret, sent, s.marshal(n))
	wantProblem(t, r, http.StatusUnauthorized, "signature_stale")
	s.wantSound()
}

// replay applies a stored notice again, by hand.
func (s *stack) replay(on int, notifyID string) reply {
	s.t.Helper()
	id := s.count("SELECT id FROM t_channel_notice WHERE notify_id = ?", notifyID)
	return s.do(call{on: on, as: operator, method: http.MethodPost, path: fmt.Sprintf("/v1/ops/notices/%d/replay", id)})
}

// B70: an operator replays stored notices a day later, through the callback's own code: what had to wait is applied, what took
// effect does not do so again, and what the notice did is still told as it was.
func TestAReplayOfANoticeADayLater(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	waiting := s.order(1001, 1)
	payNo, finish := s.early(t, 1001, waiting)
	parked := s.noticeOf("payment.succeeded", payNo)
	wantAck(t, s.notify(1, parked))
	finish()
	s.decide(payNo, "pay")
	done, n := s.offered(1002)
	wantAck(t, s.notify(0, n))
	overtaken, success := s.offered(1003)
	failure := success
	failure.Event, failure.NotifyID = "payment.failed", success.NotifyID+"-failure"
	wantAck(t, s.notify(0, failure)) // ended the attempt, until
	wantAck(t, s.notify(0, success)) // the money decided
	s.advance(24 * time.Hour)
	for i := range 4 {
		for _, id := range []string{parked.NotifyID, n.NotifyID, failure.NotifyID} {
			r := s.replay(i, id)
			if r.status != http.StatusOK || r.field("status") != "applied" {
				t.Errorf("replay: %v; want the notice, applied", r)
			}
		}
		s.wantFate(t, waiting, paidOnce())
		s.wantFate(t, done, paidOnce())
		s.wantFate(t, overtaken, paidOnce())
	}
	wantProblem(t, s.do(call{as: buyer(1001), method: http.MethodPost, path: "/v1/ops/notices/1/replay"}), http.StatusForbidden, "ops_only")
	wantProblem(t, s.do(call{as: operator, method: http.MethodPost, path: "/v1/ops/notices/999999/replay"}), http.StatusNotFound, "notice_not_found")
	s.wantSound()
}

// A notice whose payment never appears: a person is asked after a day, once, with an alarm.
func TestANoticeOfNobodysPaymentNeedsAPersonAfterADay(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	_, n := s.offered(1001)
	n.OutTradeNo = "nobody"
	for i := range 3 {
		wantAck(t, s.notify(i, n))
	}
	retry := func() {
		s.round(0, "notices.retry")
		s.round(1, "notices.retry")
	}
	s.advance(23 * time.Hour)
	retry()
	if got := s.exceptions(); len(got) != 0 {
		t.Errorf("exceptions before the day is over: %v", got)
	}
	s.advance(time.Hour)
	retry()
	s.advance(24 * time.Hour)
	retry()
	if got := s.exceptions(); len(got) != 1 || got[0] != "unknown_payment" {
		t.Errorf("open exceptions %v, want one unknown_payment", got)
	}
	if got := s.alarms(exception.UnknownPayment); got != 1 {
		t.Errorf("%d alarms, want 1", got)
	}
	person := kept{"for_person", ""}
	if got := s.notices(n.NotifyID); fmt.Sprint(got) != fmt.Sprint([]kept{person, person, person}) {
		t.Errorf("kept %v, want them to wait for a person", got)
	}
	s.wantSound()
}

// alarms sums the counter of opened exceptions over both instances.
func (s *stack) alarms(kind exception.Kind) int {
	total := 0
	for _, i := range s.instances {
		total += int(testutil.ToFloat64(i.metrics.Exceptions(string(kind))))
	}
	return total
}

// Wrong money is one exception with the sum, the cause and a way to resolve it, and one alarm, however often it is told. (B76)
func TestWrongMoneyIsOneExceptionThatAPersonResolves(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	orderNo, n := s.offered(1001)
	n.Amount = 1<<53 + 1
	for i := range 4 {
		wantAck(t, s.notify(i, n))
	}
	r := s.must(http.StatusOK, call{as: operator, path: "/v1/ops/exceptions?status=open"})
	for _, part := range []string{`"kind":"amount_mismatch"`, `"amount":9007199254740993`, orderNo, n.TradeNo, `expects 1999 CNY`} {
		if strings.Count(string(r.body), part) == 0 {
			t.Errorf("the exception does not say %s: %s", part, r.body)
		}
	}
	if got := s.alarms(exception.AmountMismatch); got != 1 {
		t.Errorf("%d alarms, want 1", got)
	}
	resolve := call{as: operator, path: fmt.Sprintf("/v1/ops/exceptions/%d/resolve", s.count("SELECT id FROM t_exception")), body: `{"resolution":"returned by hand"}`}
	for i, text := range []string{"returned by hand", "something else"} {
		resolve.on, resolve.body = i, fmt.Sprintf(`{"resolution":%q}`, text)
		if r := s.must(http.StatusOK, resolve); r.field("status") != "resolved" || r.field("resolution") != "returned by hand" {
			t.Errorf("resolved: %v", r)
		}
	}
	resolve.method, resolve.body = http.MethodPost, "" // who has nothing to say may say nothing
	s.must(http.StatusOK, resolve)
	if got := s.exceptions(); len(got) != 0 {
		t.Errorf("still open: %v", got)
	}
	s.wantSound()
}

// storyLine is an event of a timeline as these tests compare it.
type storyLine struct {
	Kind, What, Detail, Layer string
	At                        time.Time
}

func (s *stack) story(user int64, orderNo string) []storyLine {
	s.t.Helper()
	var answer struct {
		Data []storyLine `json:"data"`
	}
	r := s.must(http.StatusOK, call{as: buyer(user), path: "/v1/orders/" + orderNo + "/timeline"})
	if err := json.Unmarshal(r.body, &answer, json.MatchCaseInsensitiveNames(true)); err != nil {
		s.t.Fatal(err)
	}
	return answer.Data
}

// The timeline tells all of it in order: repeats with the guard that stopped them, the double payment and its return.
func TestTheTimelineTellsTheWholeStory(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	orderNo := s.order(1001, 1)
	other := s.attempt(1001, orderNo, "mockpay2")
	payNo := s.payWith(1001, orderNo, "mockpay")
	wantAck(t, s.notify(1, s.noticeOf("payment.succeeded", payNo)))
	wantAck(t, s.notify(1, s.noticeOf("payment.closed", payNo)))
	s.decide(other, "pay")
	wantAck(t, s.notify2(0, s.noticeOf("payment.succeeded", other)))
	s.round(0, "refunds.send")
	returning := "ra1:mockpay2:" + s.tradeNo(other)
	s.at(http.MethodPost, "/v1/refunds/"+returning+"/succeed?notify=off", "")
	wantAck(t, s.notify2(1, s.refundNoticeOf("refund.succeeded", returning)))
	wrong := s.refundNoticeOf("refund.succeeded", returning)
	wrong.Amount--
	wantAck(t, s.notify2(1, wrong))
	var got []string
	lines := s.story(1001, orderNo)
	for i, l := range lines {
		got = append(got, strings.TrimSuffix(fmt.Sprintf("%s: %s [%s] %s", l.Kind, l.What, l.Layer, l.Detail), " "))
		if i > 0 && l.At.Before(lines[i-1].At) {
			t.Errorf("line %d is older than the one before", i)
		}
	}
	want := []string{
		"transition: made INIT [] by user:1001",
		"message: order.created [] not sent yet",
		"payment: attempt on mockpay2 [] now SUCCEEDED",
		"payment: attempt on mockpay [] now SUCCEEDED",
		"notice: mockpay payment.succeeded [] applied: order PAID",
		"transition: INIT -> PAID [] by system:payment",
		"message: order.paid [] not sent yet",
		"money: trade on mockpay heard by notice [] 1999 CNY, paid the order",
		"notice: mockpay payment.succeeded [dedup] repeated: this trade was recorded before",
		"notice: mockpay payment.closed [state] stale: the attempt is SUCCEEDED already",
		"notice: mockpay2 payment.succeeded [state] applied: money is returned: the order ended or was paid by another trade",
		"money: trade on mockpay2 heard by notice [] 1999 CNY, is returned",
		"refund: automatic refund of 1999 CNY [] now SUCCESS",
		"notice: mockpay2 refund.succeeded [] applied: refund SUCCESS",
		"message: refund.succeeded [] not sent yet",
		"notice: mockpay2 refund.succeeded [state] for_person: the notice does not fit the refund",
	}
	if len(got) != len(want)+1 || !strings.HasPrefix(got[len(got)-1], "exception: refund_mismatch [] ") {
		t.Errorf("the story has %d lines, the last is %q; want %d and then the exception", len(got), got[len(got)-1], len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Errorf("line %d: %s\nwant:   %s", i, got[i], want[i])
		}
	}
	wantProblem(t, s.do(call{as: buyer(1002), path: "/v1/orders/" + orderNo + "/timeline"}), http.StatusNotFound, "order_not_found")
	s.wantSound()
}

// Two channels, both paid: the second money goes back once, against its own trade; the order and its own money stay.
func TestBothChannelsPaidAtOnceReturnsTheSecond(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	for round := range int64(5) {
		orderNo := s.order(1001+round, 1)
		pays := []string{s.attempt(1001+round, orderNo, "mockpay"), s.attempt(1001+round, orderNo, "mockpay2")}
		s.decide(pays[0], "pay")
		s.decide(pays[1], "pay")
		first, second := s.noticeOf("payment.succeeded", pays[0]), s.noticeOf("payment.succeeded", pays[1])
		testenv.Together(8, func(i int) {
			if i%2 == 0 {
				wantAck(t, s.notify(i/2, first))
			} else {
				wantAck(t, s.notify2(i/2, second))
			}
		})
		want := paidOnce()
		want.returned, want.credits = 1, 2
		s.wantFate(t, orderNo, want)
		testenv.Together(2, func(i int) { s.round(i, "refunds.send") })
		var payNo, refundNo string
		if err := s.db.QueryRow("SELECT pay_no, refund_no FROM t_refund WHERE order_no = ?", orderNo).Scan(&payNo, &refundNo); err != nil {
			t.Fatal(err)
		}
		if got := s.at(http.MethodGet, "/v1/refunds/"+refundNo, "").field("out_trade_no"); got != payNo || s.effects("refund", refundNo) != 1 {
			t.Errorf("the channel returns the trade of %s, want of %s", got, payNo)
		}
		if good := pays[0]; payNo == good {
			good = pays[1]
			if s.must(http.StatusOK, call{as: buyer(1001 + round), path: "/v1/payments/" + good}).field("refunded_amount") != "0" {
				t.Error("the order's own money was touched")
			}
		}
	}
	if got := s.effects("refund", ""); got != 5 {
		t.Errorf("the channel has %d refunds, want one for each order", got)
	}
	s.wantSound()
}
