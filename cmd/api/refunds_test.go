package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/testenv"
)

// refundNamed describes a refund under a number of the caller's.
func refundNamed(on int, user int64, orderNo, refundNo string, amount int64, k string) call {
	c := refundCall(on, user, orderNo, amount, k)
	c.body = fmt.Sprintf(`{"refund_no":%q,"amount":%d,"reason":"test"}`, refundNo, amount)
	return c
}

// refund asks for a refund and lets the job send it to the channel.
func (s *stack) refund(user int64, orderNo, refundNo string, amount int64) {
	s.t.Helper()
	s.must(http.StatusAccepted, refundNamed(0, user, orderNo, refundNo, amount, key("refund-%s", refundNo)))
	s.round(0, "refunds.send")
}

// bank decides a refund at the channel ("succeed" or "fail") without a notice.
func (s *stack) bank(refundNo, verb string) {
	s.t.Helper()
	if r := s.at(http.MethodPost, "/v1/refunds/"+refundNo+"/"+verb+"?notify=off", ""); r.status != http.StatusOK {
		s.t.Fatalf("%s %s: %v", verb, refundNo, r)
	}
}

// tell delivers a refund's notice to both instances, with an occurred_at so far from now.
func (s *stack) tell(event, refundNo string, offset time.Duration) {
	s.t.Helper()
	n := s.refundNoticeOf(event, refundNo)
	n.OccurredAt = n.OccurredAt.Add(offset)
	for i := range s.instances[:2] {
		if r := s.notify(i, n); string(r.body) != "success" {
			s.t.Errorf("%s of %s: %v", event, refundNo, r)
		}
	}
}

// wantRefund asserts a refund's status as its owner sees it.
func (s *stack) wantRefund(user int64, refundNo, status string) {
	s.t.Helper()
	if r := s.do(call{as: buyer(user), path: "/v1/refunds/" + refundNo}); r.field("status") != status {
		s.t.Errorf("refund %v; want %s", r, status)
	}
}

// wantBooked asserts how many successes of refunds were booked: ledger postings (of two entries), messages.
func (s *stack) wantBooked(refunds int) {
	s.t.Helper()
	got := [2]int{
		s.count("SELECT COUNT(*) FROM t_ledger_entry WHERE kind = 'refund'"),
		s.count("SELECT COUNT(*) FROM t_outbox WHERE topic = 'refund.succeeded'"),
	}
	if got != [2]int{2 * refunds, refunds} {
		s.t.Errorf("entries, messages of refunds = %v; want %d and %d", got, 2*refunds, refunds)
	}
}

// B92: 100 was paid. Refunds that together ask for more are accepted up to 100, here and at the channel, without Redis.
func TestRefundsNeverExceedWhatWasPaid(t *testing.T) {
	for _, c := range []struct{ amount, n, accepted int }{{60, 2, 1}, {30, 10, 3}, {100, 2, 1}} {
		t.Run(fmt.Sprintf("%d times %d", c.n, c.amount), func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 100, 10)
			orderNo, _ := s.paid(1001)
			disturb(t, s, redisDown)
			replies := s.all(c.n, func(i int) call { return refundCall(i, 1001, orderNo, int64(c.amount), key("K%d", i)) })
			got := tally(replies)
			if got["202 "] != c.accepted || got["409 refund_exceeds_paid"] != c.n-c.accepted {
				t.Errorf("answers %v; want %d accepted, the others refund_exceeds_paid", got, c.accepted)
			}
			for i, r := range replies { // refusals are final, too
				wantReplay(t, s.do(refundCall(i+1, 1001, orderNo, int64(c.amount), key("K%d", i))), r)
			}
			testenv.Together(2, func(i int) { s.round(i, "refunds.send") })
			s.wantEffects("refund", "", c.accepted)
			for _, r := range replies {
				if no := r.field("refund_no"); no != "" {
					s.bank(no, "succeed")
					s.tell("refund.succeeded", no, 0)
				}
			}
			s.wantBooked(c.accepted)
			if n := s.count("SELECT refunded_amount FROM t_order"); n != c.accepted*c.amount {
				t.Errorf("refunded %d, want %d", n, c.accepted*c.amount)
			}
			s.wantSound()
		})
	}
}

// B92, B79: what is no amount of money is 400, and uses up neither the key nor the cap.
func TestWhatIsNoAmountIsNotRefunded(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo, _ := s.paid(1001)
	c := refundCall(0, 1001, orderNo, 100, key("K1"))
	good := c.body
	for _, body := range []string{
		`{"amount":0,"reason":"x"}`, `{"amount":-1,"reason":"x"}`, `{"amount":-0,"reason":"x"}`, `{"amount":100.001,"reason":"x"}`,
		`{"amount":1e2,"reason":"x"}`, `{"amount":"100","reason":"x"}`, `{"amount":null,"reason":"x"}`, `{"reason":"x"}`,
		`{"amount":9223372036854775808,"reason":"x"}`, `{"amount":100}`, `{"amount":100,"reason":""}`,
		`{"amount":100,"reason":"` + strings.Repeat("é", 256) + `"}`, `{"amount":100,"amount":1,"reason":"x"}`, `{"amount":100,"AMOUNT":1,"reason":"x"}`,
		`{"amount":100,"reason":"x","currency":"CNY"}`, `{"amount":100,"reason":"x"}{}`, `{"refund_no":"","amount":100,"reason":"x"}`,
		`{"refund_no":"a b","amount":100,"reason":"x"}`, `{"refund_no":"ra1:x","amount":100,"reason":"x"}`, `{"refund_no":"café","amount":100,"reason":"x"}`,
		`{"refund_no":"` + strings.Repeat("a", 65) + `","amount":100,"reason":"x"}`,
	} {
		c.body = body
		if r := s.do(c); r.status != http.StatusBadRequest {
			t.Errorf("%s: %v; want 400", body, r)
		}
	}
	wantProblem(t, s.do(refundCall(0, 1001, orderNo, 1<<62, key("huge"))), http.StatusConflict, "refund_exceeds_paid")
	c.body = good
	s.must(http.StatusAccepted, c)
	if n := s.count("SELECT COUNT(*) FROM t_refund"); n != 1 {
		t.Errorf("%d refunds, want 1", n)
	}
	s.wantSound()
}

// B92: without a refund_no the key names the refund: one key, one refund; two keys, two refunds.
func TestWithoutANumberTheKeyNamesTheRefund(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo, _ := s.paid(1001)
	replies := s.all(10, func(i int) call { return refundCall(i, 1001, orderNo, 30, key("K%d", i/5)) })
	numbers := make(map[string]int)
	for _, r := range replies {
		if r.status != http.StatusAccepted {
			t.Errorf("got %v; want 202", r)
		}
		numbers[r.field("refund_no")]++
	}
	if len(numbers) != 2 || numbers[replies[0].field("refund_no")] != 5 {
		t.Errorf("refunds named: %v; want two, five times each", numbers)
	}
	s.round(0, "refunds.send")
	s.wantEffects("refund", "", 2)
	s.wantSound()
}

// Money that never came cannot go back, and a refund number belongs to one refund of one order.
func TestWhatCannotBeRefunded(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 100)
	s.sku(2, 0, 100)
	cancelled := s.order(1001, 1)
	s.must(http.StatusOK, s.step(1001, cancelled, "cancel", ""))
	paid, _ := s.paid(1001)
	second, _ := s.paid(1001)
	theirs, _ := s.paid(1002)
	s.must(http.StatusAccepted, refundNamed(0, 1002, theirs, "R-theirs", 10, key("theirs")))
	mine := s.must(http.StatusAccepted, refundNamed(0, 1001, paid, "R-mine", 10, key("mine")))
	for name, c := range map[string]struct {
		call   call
		status int
		code   string
	}{
		"not paid":         {refundCall(0, 1001, s.order(1001, 1), 1, key("unpaid")), http.StatusConflict, "nothing_paid"},
		"cancelled":        {refundCall(0, 1001, cancelled, 1, key("cancelled")), http.StatusConflict, "nothing_paid"},
		"free":             {refundCall(0, 1001, s.order(1001, 2), 1, key("free")), http.StatusConflict, "nothing_paid"},
		"another's order":  {refundCall(0, 1001, theirs, 1, key("order")), http.StatusNotFound, "order_not_found"},
		"another's number": {refundNamed(0, 1001, paid, "R-theirs", 10, key("no-1")), http.StatusConflict, "refund_no_taken"},
		"of another order": {refundNamed(0, 1001, second, "R-mine", 10, key("no-2")), http.StatusConflict, "refund_no_taken"},
		"another amount":   {refundNamed(0, 1001, paid, "R-mine", 11, key("no-3")), http.StatusConflict, "refund_no_taken"},
	} {
		first := s.do(c.call)
		wantProblem(t, first, c.status, c.code)
		if strings.Contains(string(first.body), theirs) || strings.Contains(string(first.body), "1002") {
			t.Errorf("%s: %s tells of another's refund", name, first.body)
		}
		if again := s.do(on(1, c.call)); c.status == http.StatusConflict {
			wantReplay(t, again, first)
		}
	}
	same := s.must(http.StatusAccepted, refundNamed(1, 1001, paid, "R-mine", 10, key("again")))
	if string(same.body) != string(mine.body) {
		t.Errorf("the same refund under a new key: %v; want %v", same, mine)
	}
	other := refundNamed(1, 1001, paid, "r-mine", 10, key("case")) // B21: another number
	if r := s.must(http.StatusAccepted, other); r.field("refund_no") != "r-mine" {
		t.Errorf("a number in other case: %v", r)
	}
	wantProblem(t, s.do(call{as: buyer(1001), path: "/v1/refunds/R-theirs"}), http.StatusNotFound, "refund_not_found")
	if n := s.count("SELECT COUNT(*) FROM t_refund"); n != 3 {
		t.Errorf("%d refunds, want 3", n)
	}
	s.wantSound()
}

// B94: a pending refund is neither started nor finished twice: not by its number again, not while the channel's answer is lost,
// not by twenty finalisations at once from notices, the poller and an operator.
func TestAPendingRefundIsStartedAndFinishedOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo, _ := s.paid(1001)
	s.faults(`{"refund":{"drop_after":true,"times":1}}`)
	s.refund(1001, orderNo, "R-1", 100)
	s.must(http.StatusAccepted, refundNamed(1, 1001, orderNo, "R-1", 100, key("again")))
	wantProblem(t, s.do(refundCall(1, 1001, orderNo, 1, key("more"))), http.StatusConflict, "refund_exceeds_paid")
	for i := range 3 { // the channel says "processing"
		s.advance(10 * time.Second)
		s.round(i, "refunds.send")
	}
	s.wantRefund(1001, "R-1", "PROCESSING")
	s.wantStatus(1001, orderNo, "REFUNDING")
	s.bank("R-1", "succeed")
	s.advance(10 * time.Minute)
	n := s.refundNoticeOf("refund.succeeded", "R-1")
	testenv.Together(20, func(i int) {
		if i%5 == 0 {
			s.round(i/5, "refunds.send")
		} else if r := s.notify(i, n); string(r.body) != "success" {
			t.Errorf("notice: %v", r)
		}
	})
	for _, id := range []int{1, s.count("SELECT MAX(id) FROM t_channel_notice")} {
		s.must(http.StatusOK, call{as: operator, method: http.MethodPost, path: fmt.Sprintf("/v1/ops/notices/%d/replay", id)})
	}
	s.wantRefund(1001, "R-1", "SUCCESS")
	s.wantStatus(1001, orderNo, "REFUNDED")
	if n := s.arrivals("refund", "R-1"); n != 1 {
		t.Errorf("the refund was sent %d times, want 1", n)
	}
	if n := s.count("SELECT COUNT(*) FROM t_order_history WHERE to_status IN (5, 6)"); n != 2 {
		t.Errorf("%d moves to REFUNDING and REFUNDED, want one of each", n)
	}
	s.wantBooked(1)
	s.wantSound()
}

// B96: a refund that fails frees its amount once and puts the order back where it was; what comes late changes nothing, or asks
// a person.
func TestARefundThatFails(t *testing.T) {
	const later, earlier = time.Minute, -time.Minute
	s := newStack(t)
	s.sku(1, 100, 100)
	n := 0
	for _, c := range []struct {
		name      string
		events    []string
		offsets   []time.Duration
		status    string
		exception string
	}{
		{"failed", []string{"failed"}, []time.Duration{0}, "FAILED", ""},
		{"failed, said again later", []string{"failed", "failed"}, []time.Duration{0, later}, "FAILED", ""},
		{"failed after success", []string{"succeeded", "failed"}, []time.Duration{0, later}, "FAILED", "refund_undone"},
		{"an older failure after success", []string{"succeeded", "failed"}, []time.Duration{0, earlier}, "SUCCESS", ""},
		{"success after failure", []string{"failed", "succeeded"}, []time.Duration{0, later}, "FAILED", "refund_after_failure"},
		{"an older success after failure", []string{"failed", "succeeded"}, []time.Duration{0, earlier}, "FAILED", ""},
	} {
		for was, verbs := range map[string][]string{"PAID": nil, "SHIPPED": {"ship"}, "FINISHED": {"ship", "finish"}} {
			n++
			first, second := fmt.Sprintf("R-%d", n), fmt.Sprintf("R-%d-again", n)
			orderNo, _ := s.paid(1001)
			for _, verb := range verbs {
				s.must(http.StatusOK, s.step(1001, orderNo, verb, ""))
			}
			s.refund(1001, orderNo, first, 100)
			s.wantStatus(1001, orderNo, "REFUNDING")
			for i, event := range c.events {
				s.tell("refund."+event, first, c.offsets[i])
			}
			s.wantRefund(1001, first, c.status)
			if c.status == "SUCCESS" {
				was = "REFUNDED"
			}
			s.wantStatus(1001, orderNo, was)
			if got := s.text("SELECT COALESCE(GROUP_CONCAT(kind), '') FROM t_exception WHERE order_no = ?", orderNo); got != c.exception {
				t.Errorf("exceptions %q, want %q", got, c.exception)
			}
			again := s.do(refundNamed(1, 1001, orderNo, second, 100, key("%s", second)))
			if c.status == "SUCCESS" {
				wantProblem(t, again, http.StatusConflict, "refund_exceeds_paid")
			} else if again.status != http.StatusAccepted {
				t.Errorf("a new refund: %v; want 202", again)
			}
			if t.Failed() {
				t.Fatalf("%s, of an order that was %s", c.name, was)
			}
		}
	}
	s.wantSound()
}

// B100: of a price of 100 a coupon takes 10 off. The 90 that were paid go back in random parts, some of which fail at first. The sum
// is exact after each, the coupon comes back with the last, and one more minor unit is too much.
func TestPartsSumToTheWhole(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := newGrants(t)
	for user := int64(1001); user < 1005; user++ {
		coupon := s.coupon(user, "sale")
		orderNo := s.paidWith(user, coupon)
		returned := int64(0)
		for n := 0; returned < 90; n++ {
			amount := 1 + random.Int64N(90-returned)
			no := fmt.Sprintf("R-%s-%d", orderNo[20:], n)
			s.refund(user, orderNo, no, amount)
			if random.IntN(3) == 0 {
				s.bank(no, "fail")
				s.tell("refund.failed", no, 0)
				s.wantRefund(user, no, "FAILED")
			} else {
				s.bank(no, "succeed")
				s.tell("refund.succeeded", no, 0)
				returned += amount
			}
			r := s.do(call{as: buyer(user), path: "/v1/orders/" + orderNo})
			if want := map[bool]string{true: "REFUNDED", false: "PAID"}[returned == 90]; r.field("status") != want || r.field("refunded_amount") != fmt.Sprint(returned) {
				t.Errorf("after %d: %v; want %s", returned, r, want)
			}
			if returned < 90 {
				s.wantCoupon(user, coupon, "USED", orderNo)
			}
		}
		s.wantCoupon(user, coupon, "UNUSED", "")
		wantProblem(t, s.do(refundCall(0, user, orderNo, 1, key("more-%s", orderNo))), http.StatusConflict, "refund_exceeds_paid")
	}
	s.wantSound()
}

// Double money: the second channel's trade is returned by itself, once, and never touches the order. Its owner cannot ask for
// it a second time.
func TestDoubleMoneyIsReturnedOnceAndNotOnDemand(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo := s.order(1001, 1)
	first, second := s.attempt(1001, orderNo, "mockpay"), s.attempt(1001, orderNo, "mockpay2")
	s.settle(first)
	s.buyerPays(second)
	s.advance(time.Minute)
	testenv.Together(4, func(i int) { s.round(i, "payments.poll") })
	testenv.Together(4, func(i int) { s.round(i, "refunds.send") })
	auto := "ra1:mockpay2:" + s.tradeNo(second)
	s.wantEffects("refund", "", 1)
	s.wantEffects("refund", auto, 1)
	s.wantStatus(1001, orderNo, "PAID")
	s.refund(1001, orderNo, "R-1", 100) // the good money may go back on demand
	wantProblem(t, s.do(refundCall(1, 1001, orderNo, 1, key("more"))), http.StatusConflict, "refund_exceeds_paid")
	wantProblem(t, s.do(refundNamed(1, 1001, orderNo, auto, 100, key("auto"))), http.StatusBadRequest, "refund_no_invalid")
	for _, no := range []string{auto, "R-1"} {
		s.bank(no, "succeed")
	}
	s.advance(time.Minute)
	s.round(0, "refunds.send")
	s.wantRefund(1001, auto, "SUCCESS")
	s.wantStatus(1001, orderNo, "REFUNDED")
	s.wantBooked(2)
	s.wantSound()
}

// A channel that refuses a refund for good ends it as FAILED: a buyer may ask again, and money of nobody's asks for a person.
func TestARefundRefusedForGood(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo, _ := s.paid(1001)
	s.faults(`{"refund":{"status":409}}`)
	s.refund(1001, orderNo, "R-1", 100)
	s.wantRefund(1001, "R-1", "FAILED")
	s.wantStatus(1001, orderNo, "PAID")
	late := s.order(1001, 1)
	payNo := s.attempt(1001, late, "mockpay")
	s.must(http.StatusOK, s.step(1001, late, "cancel", ""))
	s.settle(payNo)
	s.round(0, "refunds.send")
	s.wantRefund(1001, "ra1:mockpay:"+s.tradeNo(payNo), "FAILED")
	if got := s.exceptions(); !slices.Equal(got, []string{"auto_refund_failed"}) {
		t.Errorf("exceptions %v; want one auto_refund_failed", got)
	}
	s.faults(`{}`)
	s.refund(1001, orderNo, "R-2", 100)
	s.wantRefund(1001, "R-2", "PROCESSING")
	s.wantEffects("refund", "", 1)
	s.wantSound()
}
