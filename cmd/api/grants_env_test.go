package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What the tests of grants and of orders with coupons ask for, and what they say about it.

// newGrants starts a stack with goods of 100 minor units, which earn a point each, and an activity that grants coupons of 10.
func newGrants(t *testing.T, env ...string) *stack {
	t.Helper()
	s := newStack(t, env...)
	s.sku(1, 100, 100_000)
	s.couponSale("sale", 10, 1000)
	return s
}

// couponSale makes a running activity that grants coupons of a template with its own name.
func (s *stack) couponSale(id string, discount, limit int64) {
	s.t.Helper()
	s.must(http.StatusCreated, call{as: operator, method: http.MethodPut, path: "/v1/ops/activities/" + id, body: fmt.Sprintf(
		`{"title":"sale","starts_at":"2000-01-01T00:00:00Z","ends_at":"2999-01-01T00:00:00Z","coupon":{"template":%q,"discount":%d,"limit":%d}}`, id, discount, limit)})
}

// claim describes a request for the coupon of an activity.
func claim(on int, user int64, activity, k string) call {
	return call{on: on, as: buyer(user), method: http.MethodPost, path: "/v1/activities/" + activity + "/coupons", key: k}
}

// redeem describes a purchase of a coupon with points.
func redeem(on int, user int64, template, k string) call {
	return call{on: on, as: buyer(user), path: "/v1/points/redemptions", body: fmt.Sprintf(`{"points":100,"coupon_template":%q}`, template), key: k}
}

// makeCode describes an operator's request for a code.
func makeCode(on int, template, k string) call {
	return call{on: on, as: operator, path: "/v1/coupon-codes", body: fmt.Sprintf(`{"template":%q}`, template), key: k}
}

var granted = regexp.MustCompile(`"(?:coupon_no|code)":"(\w+)"`)

// grantOf returns the coupon_no or the code that a success gave, "" for anything else.
func grantOf(r reply) string {
	m := granted.FindSubmatch(r.body)
	if r.status >= http.StatusMultipleChoices || m == nil {
		return ""
	}
	return string(m[1])
}

// earn gives a user points the way they come: goods of 100 minor units are paid, and the message about it is consumed.
func (s *stack) earn(user, points int64) {
	s.t.Helper()
	const sku = 100
	goods := call{as: operator, method: http.MethodPut, path: fmt.Sprintf("/v1/ops/skus/%d", sku), body: `{"title":"a point","price":100,"currency":"CNY","stock":1000000}`}
	if r := s.do(goods); r.status > http.StatusCreated {
		s.t.Fatalf("goods: %v", r)
	}
	buy := create(0, user, sku, key("%s", rand.Text()), "")
	buy.body = fmt.Sprintf(`{"sku_id":%d,"quantity":%d}`, sku, points)
	s.settle(s.attempt(user, s.must(http.StatusCreated, buy).field("order_no"), "mockpay"))
	s.hear()
}

// hear lets the consumers hear of everything that has happened.
func (s *stack) hear() {
	s.t.Helper()
	s.advance(time.Minute) // past the time that a broker has
	s.consume()
}

// wantPoints asserts a balance as its owner sees it on both instances.
func (s *stack) wantPoints(user, balance int64) {
	s.t.Helper()
	for i := range s.instances[:2] {
		if r := s.must(http.StatusOK, call{on: i, as: buyer(user), path: "/v1/me/points"}); r.field("balance") != fmt.Sprint(balance) {
			s.t.Errorf("user %d has %v; want %d points", user, r, balance)
		}
	}
}

// wantCoupon asserts a coupon's status and order as its owner sees them on both instances.
func (s *stack) wantCoupon(user int64, couponNo, status, orderNo string) {
	s.t.Helper()
	for i := range s.instances[:2] {
		var list struct {
			Data []struct {
				CouponNo string `json:"coupon_no"`
				Status   string `json:"status"`
				OrderNo  string `json:"order_no"` // null leaves it empty
			} `json:"data"`
		}
		r := s.must(http.StatusOK, call{on: i, as: buyer(user), path: "/v1/me/coupons?limit=100"})
		if err := json.Unmarshal(r.body, &list); err != nil {
			s.t.Fatal(err)
		}
		found := ""
		for _, c := range list.Data {
			if c.CouponNo == couponNo {
				found = c.Status + " " + c.OrderNo
			}
		}
		if want := status + " " + orderNo; found != want {
			s.t.Errorf("coupon %s is %q, want %q", couponNo, found, want)
		}
	}
}

// withCoupon makes a purchase one with a coupon.
func withCoupon(c call, couponNo string) call {
	c.body = strings.TrimSuffix(c.body, "}") + fmt.Sprintf(`,"coupon_no":%q}`, couponNo)
	return c
}

// coupon claims an activity's coupon and returns its number.
func (s *stack) coupon(user int64, activity string) string {
	s.t.Helper()
	return s.must(http.StatusCreated, claim(0, user, activity, key("coupon-of-%s", activity))).field("coupon_no")
}

// orderWith makes an order of SKU 1 with a coupon and returns its number.
func (s *stack) orderWith(user int64, couponNo string) string {
	s.t.Helper()
	k := key("with-%s-%d", couponNo, s.count("SELECT COUNT(*) FROM t_order"))
	return s.must(http.StatusCreated, withCoupon(create(0, user, 1, k, ""), couponNo)).field("order_no")
}

// paidWith makes such an order and pays it.
func (s *stack) paidWith(user int64, couponNo string) string {
	s.t.Helper()
	orderNo := s.orderWith(user, couponNo)
	s.settle(s.attempt(user, orderNo, "mockpay"))
	return orderNo
}

// returned refunds so much of an order, to the end.
func (s *stack) returned(user int64, orderNo, refundNo string, amount int64) {
	s.t.Helper()
	s.refund(user, orderNo, refundNo, amount)
	s.bank(refundNo, "succeed")
	s.tell("refund.succeeded", refundNo, 0)
	s.wantRefund(user, refundNo, "SUCCESS")
}

// undone takes a refund's success back, as a channel does whose bank could not deliver the money.
func (s *stack) undone(user int64, refundNo string) {
	s.t.Helper()
	s.bank(refundNo, "fail")
	s.tell("refund.failed", refundNo, time.Minute)
	s.wantRefund(user, refundNo, "FAILED")
}
