package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"example.com/oncepay/internal/testenv"
)

// Orders with a coupon: used by one living order, given back once when that ends without a sale.

// B102: twenty orders at once want one coupon: one has it, the others take no goods either. Another user's coupon is not there.
func TestACouponIsUsedByOneOfTwentyOrders(t *testing.T) {
	s := newGrants(t)
	coupon := s.coupon(1001, "sale")
	wantProblem(t, s.do(withCoupon(create(0, 1002, 1, key("theirs"), ""), coupon)), http.StatusNotFound, "coupon_not_found")
	ask := func(on, i int) call { return withCoupon(create(on, 1001, 1, key("K%d", i), ""), coupon) }
	replies := s.all(20, func(i int) call { return ask(i, i) })
	if got := tally(replies); got["201 "] != 1 || got["409 coupon_used"] != 19 {
		t.Errorf("answers %v; want one order, for the others coupon_used", got)
	}
	for i, r := range replies {
		wantReplay(t, s.do(ask(i+1, i)), r)
		if r.status != http.StatusCreated {
			continue
		}
		if r.field("amount") != "90" || r.field("discount") != "10" || r.field("coupon_no") != coupon {
			t.Errorf("the order is %v; want 90 after a discount of 10", r)
		}
		s.wantCoupon(1001, coupon, "USED", r.field("order_no"))
	}
	s.wantStock(99_999, 1, 0)
	s.wantRows(1)
	s.wantSound()
}

// B25: a create that fails for its coupon uses no token up, and the corrected one makes one order however often it is sent.
func TestABadCouponUsesNoTokenUp(t *testing.T) {
	s := newGrants(t)
	used, theirs := s.coupon(1001, "sale"), s.coupon(1002, "sale")
	s.orderWith(1001, used)
	orders := 1
	for code, bad := range map[string]struct {
		coupon string
		status int
	}{"none": {"none", http.StatusNotFound}, "theirs": {theirs, http.StatusNotFound}, "used": {used, http.StatusConflict}} {
		good := create(1, 1001, 1, key("%s-K2", code), s.token(1001))
		c := withCoupon(create(0, 1001, 1, key("%s-K1", code), good.token), bad.coupon)
		want := map[int]string{http.StatusNotFound: "coupon_not_found", http.StatusConflict: "coupon_used"}[bad.status]
		first := s.do(c)
		wantProblem(t, first, bad.status, want)
		if bad.status == http.StatusConflict { // the business has looked: final for its key
			wantReplay(t, s.do(on(1, c)), first)
		}
		replies := s.all(20, func(i int) call { return on(i, good) })
		for _, r := range replies {
			wantOrder(t, r, replies[0].field("order_no"))
		}
		orders++
	}
	s.wantRows(orders)
	s.wantSound()
}

// A coupon that is worth more than the goods makes the order PAID by its own creation. There is no money to pay or to go back,
// and what is sold is not cancelled: the coupon stays used.
func TestACouponLargerThanThePricePaysTheOrder(t *testing.T) {
	s := newGrants(t)
	s.couponSale("large", 1000, 10)
	coupon := s.coupon(1001, "large")
	r := s.must(http.StatusCreated, withCoupon(create(0, 1001, 1, key("K1"), ""), coupon))
	if r.field("status") != "PAID" || r.field("amount") != "0" || r.field("discount") != "100" || r.field("paid_at") == "" {
		t.Errorf("got %v; want it PAID, with 100 off and nothing to pay", r)
	}
	orderNo := r.field("order_no")
	wantProblem(t, s.do(refundCall(1, 1001, orderNo, 100, key("refund"))), http.StatusConflict, "nothing_paid")
	wantProblem(t, s.do(s.step(1001, orderNo, "cancel", "")), http.StatusConflict, "order_state_illegal")
	wantProblem(t, s.do(payCall(0, 1001, orderNo, "mockpay", key("pay"))), http.StatusConflict, "order_state_illegal")
	s.hear()
	s.wantPoints(1001, 0)
	s.wantCoupon(1001, coupon, "USED", orderNo)
	s.wantStock(99_999, 0, 1)
	s.wantEffects("charge", "", 0)
	s.must(http.StatusOK, s.step(1001, orderNo, "ship", ""))
	s.wantSound()
}

// A full refund gives the coupon back for a new order; a part of it does not. When the channel takes the refund's success back, the
// order lives again: with its coupon, or, if another order has that by now, with its discount alone. Either way its money can still
// go back, and the coupon is nobody's but one order's.
func TestARefundThatIsUndoneTakesItsCouponBack(t *testing.T) {
	for _, meanwhile := range []string{"nobody uses it", "another order uses it"} {
		t.Run(meanwhile, func(t *testing.T) {
			s := newGrants(t)
			coupon := s.coupon(1001, "sale")
			first := s.paidWith(1001, coupon)
			s.returned(1001, first, "R-1", 50)
			s.wantCoupon(1001, coupon, "USED", first)
			s.returned(1001, first, "R-2", 40)
			s.wantStatus(1001, first, "REFUNDED")
			s.wantCoupon(1001, coupon, "UNUSED", "")
			holder, shown := first, coupon
			if meanwhile == "another order uses it" {
				holder, shown = s.paidWith(1001, coupon), ""
			}
			s.undone(1001, "R-2")
			s.wantStatus(1001, first, "PAID")
			s.wantCoupon(1001, coupon, "USED", holder)
			r := s.must(http.StatusOK, call{as: buyer(1001), path: "/v1/orders/" + first})
			if r.field("coupon_no") != shown || r.field("discount") != "10" || r.field("amount") != "90" || r.field("refunded_amount") != "50" {
				t.Errorf("the order is %v; want coupon %q, its discount, and 50 of 90 returned", r, shown)
			}
			s.hear()
			s.wantSound()
			s.returned(1001, first, "R-3", 40)
			s.wantStatus(1001, first, "REFUNDED")
			if holder != first {
				s.wantCoupon(1001, coupon, "USED", holder)
				s.returned(1001, holder, "R-4", 90)
			}
			s.wantCoupon(1001, coupon, "UNUSED", "")
			wantProblem(t, s.do(refundCall(0, 1001, first, 1, key("more"))), http.StatusConflict, "refund_exceeds_paid")
			s.orderWith(1001, coupon)
			s.wantSound()
		})
	}
}

// An order has earned the points of the money that stayed. Points that were spent before a refund are owed, and until they are
// earned again nothing can be redeemed.
func TestPointsFollowTheMoney(t *testing.T) {
	s := newGrants(t)
	s.sku(2, 15_050, 100)
	orderNo := s.order(1001, 2)
	s.settle(s.attempt(1001, orderNo, "mockpay"))
	want := func(balance int64) {
		t.Helper()
		s.hear()
		s.wantPoints(1001, balance)
	}
	want(150)
	s.returned(1001, orderNo, "R-1", 50)
	want(150) // 150.00 stays
	s.returned(1001, orderNo, "R-2", 1)
	want(149)
	s.must(http.StatusCreated, redeem(0, 1001, "sale", key("redeem-1")))
	want(49)
	s.returned(1001, orderNo, "R-3", 14_999)
	want(-100)
	refused := redeem(1, 1001, "sale", key("redeem-2"))
	first := s.do(refused)
	wantProblem(t, first, http.StatusConflict, "points_insufficient")
	s.undone(1001, "R-3")
	want(49)
	s.earn(1001, 51)
	wantReplay(t, s.do(refused), first) // final for its key
	s.must(http.StatusCreated, redeem(1, 1001, "sale", key("redeem-3")))
	s.wantPoints(1001, 0)
	s.wantSound()
}

// B107: an order with a coupon expires, which gives the coupon back, and another order uses it. Then the first one's money comes,
// again and again, and goes back by itself: neither order's coupon moves. No job takes a coupon from an order with money on it.
func TestLateMoneyMovesNoCoupon(t *testing.T) {
	s := newGrants(t)
	coupon := s.coupon(1001, "sale")
	first := s.orderWith(1001, coupon)
	s.faults(`{"charge":{"drop_after":true,"times":1}}`) // the trade is there, and we never heard of it
	payNo := s.must(http.StatusAccepted, payCall(0, 1001, first, "mockpay", key("K1"))).field("pay_no")
	s.expire(t)
	s.wantStatus(1001, first, "CANCELLED")
	s.wantCoupon(1001, coupon, "UNUSED", "")
	second := s.paidWith(1001, coupon)
	s.settle(payNo)
	s.settle(payNo)
	auto := "ra1:mockpay:" + s.tradeNo(payNo)
	testenv.Together(2, func(i int) { s.round(i, "refunds.send") })
	s.wantEffects("refund", auto, 1)
	s.bank(auto, "succeed")
	s.tell("refund.succeeded", auto, 0)
	for i := range 4 {
		s.advance(24 * time.Hour)
		for _, job := range jobNames(s.instances[0].svc.jobs.Jobs) {
			s.round(i, job)
		}
	}
	s.wantStatus(1001, first, "CANCELLED")
	s.wantStatus(1001, second, "PAID")
	s.wantCoupon(1001, coupon, "USED", second)
	s.wantPoints(1001, 0) // 90 minor units earn none, and late money never does
	s.wantSound()
}

// B108: twenty cancels by owner and operator beside the expiry job on both instances, and an order that wants the coupon as soon as
// it is back. Coupon and stock come back once; whoever has the coupon then keeps it.
func TestParallelCancelsGiveTheCouponBackOnce(t *testing.T) {
	s := newGrants(t)
	coupon := s.coupon(1001, "sale")
	orderNo := s.orderWith(1001, coupon)
	for round := range 5 {
		s.overdue()
		var next reply
		testenv.Together(25, func(i int) {
			if i < 4 {
				s.round(i, "orders.close")
				return
			}
			if i == 4 {
				next = s.do(withCoupon(create(round, 1001, 1, key("next-%d", round), ""), coupon))
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
		if n := s.count("SELECT COUNT(*) FROM t_order_history WHERE to_status = 4 AND order_no = ?", orderNo); n != 1 {
			t.Errorf("%d transitions, want 1", n)
		}
		if next.status != http.StatusCreated {
			wantProblem(t, next, http.StatusConflict, "coupon_used") // it came before the coupon was back
			s.wantCoupon(1001, coupon, "UNUSED", "")
			s.wantStock(100_000, 0, 0)
			orderNo = s.orderWith(1001, coupon)
		} else {
			orderNo = next.field("order_no")
		}
		s.wantCoupon(1001, coupon, "USED", orderNo)
		s.wantStock(99_999, 1, 0)
	}
	s.wantSound()
}

// B81: fifty races of two creates with one business key and one coupon, with the data layer alone to decide and 0 to 20 ms between
// its steps. The loser returns the winner's order and gives nothing back.
func TestLosersOfARaceForACouponCompensateNothing(t *testing.T) {
	s := newGrants(t, "DISABLE_GUARDS=token,lock")
	var releases []*testenv.Rule
	for _, i := range s.instances {
		releases = append(releases, i.mysql.On(testenv.Contains("UPDATE t_coupon SET status = 0"), -1, testenv.Action{}))
		i.mysql.On(testenv.Contains("INSERT INTO t_order ("), -1, testenv.Jitter(20*time.Millisecond))
		i.mysql.On(testenv.Contains("INSERT INTO t_idempotency_key"), -1, testenv.Jitter(20*time.Millisecond))
	}
	const rounds = 50
	for n := range rounds {
		user := int64(2001 + n)
		coupon := s.coupon(user, "sale")
		replies := s.all(2, func(i int) call { return withCoupon(create(i, user, 1, key("K%d", i), "one-form"), coupon) })
		for _, r := range replies {
			wantOrder(t, r, replies[0].field("order_no"))
		}
		s.wantCoupon(user, coupon, "USED", replies[0].field("order_no"))
	}
	if n := s.hits("unique_index", "order.create", "replayed"); n != rounds {
		t.Errorf("the index stopped %d requests; want one of each race", n)
	}
	released := func() [2]int {
		return [2]int{s.count("SELECT COUNT(*) FROM t_stock_movement WHERE kind IN ('release', 'return')"), releases[0].Hits() + releases[1].Hits()}
	}
	if got := released(); got != [2]int{} {
		t.Errorf("releases of stock and coupons: %v; want none", got)
	}
	s.must(http.StatusOK, s.step(2001, s.text("SELECT order_no FROM t_order WHERE user_id = 2001"), "cancel", ""))
	if got := released(); got != [2]int{1, 1} {
		t.Errorf("after one cancel: %v; if it is not seen, this test shows nothing", got)
	}
	s.wantRows(rounds)
	s.wantSound()
}

// B104: a create is held before it uses its coupon. Nobody can cancel what is not there and no job ends it, so the coupon cannot
// come back. Whoever uses it meanwhile has it; the late one takes neither coupon nor goods, and neither does one whose connection
// is lost.
func TestAnOrderOnItsWayHasNoCoupon(t *testing.T) {
	for _, meanwhile := range []string{"nothing", "another order", "a lost connection"} {
		t.Run(meanwhile, func(t *testing.T) {
			s := newGrants(t, shortLocks()...)
			coupon := s.coupon(1001, "sale")
			gate := testenv.NewGate(t)
			mysql := s.instances[0].mysql
			mysql.On(testenv.Contains("UPDATE t_coupon"), 1, testenv.Hold(gate))
			c := withCoupon(create(0, 1001, 1, key("K1"), ""), coupon)
			answer := s.background(c)
			gate.WaitEntered(t, 1)
			s.instances[1].clock.advance(time.Hour)
			s.round(1, "orders.close")
			s.wantCoupon(1001, coupon, "UNUSED", "")
			s.wantStock(100_000, 0, 0)
			holder := ""
			switch meanwhile {
			case "another order":
				s.sku(2, 500, 10) // the goods of the first are locked by it
				holder = s.must(http.StatusCreated, withCoupon(create(1, 1001, 2, key("K2"), ""), coupon)).field("order_no")
			case "a lost connection":
				mysql.Down() // the command at the gate is lost with its connection
			}
			gate.Open()
			r := <-answer
			switch meanwhile {
			case "another order":
				wantProblem(t, r, http.StatusConflict, "coupon_used")
				s.wantStock(100_000, 0, 0)
			case "a lost connection":
				wantUndecided(t, r)
				mysql.Up()
				s.wantCoupon(1001, coupon, "UNUSED", "")
				holder = s.finally(t, c).field("order_no")
			default:
				holder = r.field("order_no")
			}
			s.wantCoupon(1001, coupon, "USED", holder)
			s.advance(time.Hour)
			s.round(1, "orders.close")
			s.wantCoupon(1001, coupon, "UNUSED", "")
			s.wantSound()
		})
	}
}

// B105: ten coupons, sixty users at once: ten have one. Then these buy with it, all at once and each again and again, and cancel or
// pay and get their money back. Every coupon and every unit is where it belongs.
func TestTenCouponsAreGrantedTenTimes(t *testing.T) {
	s := newGrants(t)
	s.couponSale("ten", 10, 10)
	ask := func(on, i int) call { return claim(on, int64(2001+i), "ten", key("claim")) }
	replies := s.all(60, func(i int) call { return ask(i, i) })
	if got := tally(replies); got["201 "] != 10 || got["409 coupons_exhausted"] != 50 {
		t.Errorf("answers %v; want 10 coupons, for the others coupons_exhausted", got)
	}
	var winners []int
	for i, r := range replies {
		wantReplay(t, s.do(ask(i+1, i)), r)
		if r.status == http.StatusCreated {
			winners = append(winners, i)
		}
	}
	s.faults(`{"refund_mode":"auto","auto_refund_ms":0}`)
	const rounds = 4
	testenv.Together(len(winners), func(w int) {
		user, coupon := int64(2001+winners[w]), grantOf(replies[winners[w]])
		for n := range rounds {
			r := s.do(withCoupon(create(w+n, user, 1, key("K%d", n), ""), coupon))
			orderNo := r.field("order_no")
			switch {
			case r.status != http.StatusCreated:
				t.Errorf("user %d, round %d: %v; want an order", user, n, r)
			case n == rounds-1: // which keeps it
			case n%2 == 0:
				s.do(on(w, s.step(user, orderNo, "cancel", "")))
			default:
				payNo := s.do(payCall(w, user, orderNo, "mockpay", key("pay-%d", n))).field("pay_no")
				s.at(http.MethodPost, "/v1/trades/"+payNo+"/pay?notify=off", "")
				wantAck(t, s.notify(w, s.noticeOf("payment.succeeded", payNo)))
				no := s.do(refundCall(w, user, orderNo, 90, key("refund-%d", n))).field("refund_no")
				testenv.Eventually(t, setupWait, "the refund is sent", func() error {
					s.round(w, "refunds.send")
					if s.effects("refund", no) == 0 {
						return fmt.Errorf("not yet")
					}
					return nil
				})
				wantAck(t, s.notify(w, s.refundNoticeOf("refund.succeeded", no)))
			}
		}
	})
	s.wantStock(99_980, 10, 10) // what was paid stays sold when its money goes back
	if n := s.count("SELECT COUNT(*) FROM t_coupon c JOIN t_order o ON o.order_no = c.order_no AND o.status = 0 WHERE c.status = 1"); n != 10 {
		t.Errorf("%d coupons are used by an open order, want 10", n)
	}
	s.wantSound()
}
