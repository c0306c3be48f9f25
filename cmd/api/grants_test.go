package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/testenv"
)

// What is given under a key: an activity's coupons, redemptions of points, codes.

// B01: two callers send the same keys with the same bodies, twenty rounds at once, on every route of grants. Each gets their own,
// and sees no record but their own.
func TestEveryCallerHasGrantsOfTheirOwn(t *testing.T) {
	s := newGrants(t)
	const rounds = 20
	callers := []int64{1001, 1002}
	for _, user := range callers {
		s.earn(user, 100*rounds)
	}
	for n := range rounds {
		s.couponSale(fmt.Sprint("round-", n), 10, 2)
	}
	for name, ask := range map[string]func(user int64, n int, k string) call{
		"claim":  func(user int64, n int, k string) call { return claim(n, user, fmt.Sprint("round-", n), k) },
		"redeem": func(user int64, n int, k string) call { return redeem(n, user, "sale", k) },
		"code": func(user int64, n int, k string) call {
			c := makeCode(n, "sale", k)
			c.as = auth.Caller{UserID: user, Ops: true}
			return c
		},
	} {
		replies := s.all(rounds*2, func(i int) call { return ask(callers[i%2], i/2, key("%s-%d", name, i/2)) })
		seen := make(map[string]bool)
		for i, r := range replies {
			if r.status != http.StatusCreated || r.replayed != "false" || seen[grantOf(r)] {
				t.Errorf("%s: %v; want a grant of their own", name, r)
			}
			seen[grantOf(r)] = true
			shown := s.lookUp(callers[i%2], key("%s-%d", name, i/2))
			if !strings.Contains(string(shown.body), grantOf(r)) || strings.Contains(string(shown.body), grantOf(replies[i^1])) {
				t.Errorf("%s: caller %d looks the key up and sees %v", name, callers[i%2], shown)
			}
			wantReplay(t, s.do(ask(callers[i%2], i/2, key("%s-%d", name, i/2))), r)
		}
		wantProblem(t, s.lookUp(1003, key("%s-0", name)), http.StatusNotFound, "idempotency_key_not_found")
		other := ask(callers[0], 1, key("%s-0", name)) // B03: another path, or at least another query
		other.path += "?a=1"
		wantProblem(t, s.do(other), http.StatusUnprocessableEntity, "idempotency_key_reused")
	}
	s.wantPoints(1001, 0)
	s.wantPoints(1002, 0)
	s.wantSound()
}

// B06, B08: a faulty request for a grant gets its own answer, takes nothing, and the same key then simply works.
func TestAFaultyRequestForAGrantTakesNothing(t *testing.T) {
	s := newGrants(t)
	s.earn(1001, 300)
	keys := s.count("SELECT COUNT(*) FROM t_idempotency_key")
	redemptions := []string{
		`{"points":100,"points":1,"coupon_template":"sale"}`, `{"points":100,"POINTS":1,"coupon_template":"sale"}`, `{"Points":100,"coupon_template":"sale"}`,
		`{"points":100,"poıntſ":1,"coupon_template":"sale"}`, `{"points":100,"coupon_template":"sale","coupon_templat\u0065":"x"}`,
		`{"points":100,"coupon_template":{"a":1,"a":2}}`, `{"points":100,"coupon_template":"sale","user_id":1002}`,
		`{"points":100,"coupon_template":"sale"}{"points":100,"coupon_template":"x"}`, `{"points":100.0,"coupon_template":"sale"}`,
		`{"points":1e2,"coupon_template":"sale"}`, `{"points":"100","coupon_template":"sale"}`, `{"points":9223372036854775808,"coupon_template":"sale"}`,
	}
	codes := []string{
		`{"template":"sale","template":"x"}`, `{"template":"sale","Template":"x"}`, `{"template":{"a":1,"a":2}}`, `{"template":"sale","code":"FREE"}`, `{"template":"sale"}{}`,
	}
	for _, grant := range []struct {
		good   call
		bodies []string
	}{
		{claim(0, 1001, "sale", key("claim")), []string{`{"user_id":1002}`, `{"a":1,"a":2}`, `{}{}`, `[]`}},
		{redeem(0, 1001, "sale", key("redeem")), redemptions},
		{makeCode(0, "sale", key("code")), codes},
	} {
		var faults []fault
		for _, text := range grant.bodies {
			faults = append(faults, fault{text, body(text), http.StatusBadRequest, "body_invalid"})
		}
		for _, f := range headerFaults(t) {
			// A submit token is for orders, and a request without a body has no type.
			if f.code != "token_spent" && f.code != "submit_token_invalid" && (f.code != "unsupported_media_type" || grant.good.body != "") {
				faults = append(faults, f)
			}
		}
		for _, f := range faults {
			bad := grant.good
			f.spoil(&bad)
			wantProblem(t, s.do(bad), f.status, f.code)
			if t.Failed() {
				t.Fatalf("%s: %s", bad.path, f.name)
			}
		}
		if n := s.count("SELECT COUNT(*) FROM t_idempotency_key"); n != keys {
			t.Errorf("%s: %d keys were used up", grant.good.path, n-keys)
		}
		if r := s.do(grant.good); r.status != http.StatusCreated || r.replayed != "false" {
			t.Errorf("%s, the good request under the same key: %v", grant.good.path, r)
		}
		keys++
	}
	s.wantPoints(1001, 200)
	if n := s.count("SELECT COUNT(*) FROM t_coupon") + s.count("SELECT COUNT(*) FROM t_coupon_code"); n != 3 {
		t.Errorf("%d coupons and codes, want one of each request", n)
	}
	s.wantSound()
}

// B10: past the retention the grants' own keys find what was granted. A code has none: there the same request is a new one.
func TestGrantsOutliveTheirKeys(t *testing.T) {
	s := newGrants(t)
	s.earn(1001, 300)
	calls := map[string]call{"claim": claim(0, 1001, "sale", key("claim")), "redeem": redeem(0, 1001, "sale", key("redeem")), "code": makeCode(0, "sale", key("code"))}
	first := make(map[string]reply)
	for name, c := range calls {
		first[name] = s.must(http.StatusCreated, c)
		record := s.lookUp(c.as.UserID, c.key)
		made, _ := time.Parse(time.RFC3339, record.field("created_at"))
		if ends, err := time.Parse(time.RFC3339, record.field("expires_at")); err != nil || ends.Sub(made) != s.instances[0].svc.cfg.KeyRetention {
			t.Errorf("the record does not show when it expires: %v", record)
		}
	}
	buy := withCoupon(create(0, 1001, 1, key("buy"), ""), grantOf(first["claim"]))
	orderNo := s.must(http.StatusCreated, buy).field("order_no")
	s.settle(s.attempt(1001, orderNo, "mockpay"))
	s.advance(s.instances[0].svc.cfg.KeyRetention + time.Minute)
	for i, job := range jobNames(s.instances[0].svc.jobs.Jobs) {
		s.round(i, job)
	}
	status := map[string]int{"claim": http.StatusOK, "redeem": http.StatusCreated, "code": http.StatusCreated}
	for name, c := range calls {
		wantProblem(t, s.lookUp(c.as.UserID, c.key), http.StatusNotFound, "idempotency_key_not_found")
		again := s.must(status[name], on(1, c))
		if same := grantOf(again) == grantOf(first[name]); same != (name != "code") {
			t.Errorf("%s again: %v, the first was %v", name, again, first[name])
		}
		wantReplay(t, s.do(c), again)
	}
	wantOrder(t, s.do(on(1, buy)), orderNo)
	s.wantCoupon(1001, grantOf(first["claim"]), "USED", orderNo)
	s.wantPoints(1001, 200)
	s.wantSound()
}

// B14: what is as long as allowed is kept apart, what is longer is refused. B21: so is what differs only in case, and what is
// outside the alphabet is refused.
func TestGrantsWithNearlyEqualNamesStayApart(t *testing.T) {
	s := newGrants(t)
	long := strings.Repeat("a", 63)
	for _, id := range []string{"SALE", long + "A", long + "B"} {
		s.couponSale(id, 10, 10)
	}
	var replies []reply
	for _, user := range []int64{1<<63 - 1, 1<<63 - 2} {
		s.earn(user, 400)
		for i, id := range []string{"sale", "SALE", long + "A", long + "B"} {
			k := []string{key("case"), key("CASE"), strings.Repeat("k", 254) + "A", strings.Repeat("k", 254) + "B"}[i]
			replies = append(replies, s.do(claim(i, user, id, "c"+k[1:])), s.do(redeem(i, user, id, "r"+k[1:])))
		}
		s.wantPoints(user, 0)
	}
	seen := make(map[string]bool)
	for _, r := range replies {
		if r.status != http.StatusCreated || r.replayed != "false" || seen[grantOf(r)] {
			t.Errorf("got %v; want a grant of its own", r)
		}
		seen[grantOf(r)] = true
	}
	if n := max(s.count("SELECT MAX(LENGTH(grant_key)) FROM t_coupon"), s.count("SELECT MAX(LENGTH(cause)) FROM t_point_entry")); n > 64 {
		t.Errorf("the longest key has %d bytes", n)
	}
	upper := strings.ToUpper(grantOf(replies[0]))
	wantProblem(t, s.do(withCoupon(create(0, 1<<63-1, 1, key("upper"), ""), upper)), http.StatusNotFound, "coupon_not_found")
	for _, id := range []string{long + "AB", strings.Repeat("𝔸", 64), "café", "straße", "Ａ", "sale ", "sale.", "sale:1"} { // 𝔸 has four bytes
		wantProblem(t, s.do(claim(0, 1001, strings.ReplaceAll(id, " ", "%20"), key("bad"))), http.StatusBadRequest, "activity_id_invalid")
		wantProblem(t, s.do(redeem(0, 1001, id, key("bad"))), http.StatusBadRequest, "template_invalid")
		wantProblem(t, s.do(makeCode(0, id, key("bad"))), http.StatusBadRequest, "template_invalid")
	}
	s.wantSound()
}

// B16, B19: an instance dies at every step of a grant. The same request again has one grant, whichever instance gets it.
func TestADeadInstanceStrandsNoGrant(t *testing.T) {
	for _, b := range barriers() {
		if b.redis {
			continue // grants take no lock
		}
		t.Run(b.name, func(t *testing.T) {
			s := newGrants(t)
			s.earn(1001, 100)
			for _, c := range []call{claim(0, 1001, "sale", key("claim")), redeem(0, 1001, "sale", key("redeem")), makeCode(0, "sale", key("code"))} {
				s.dieAt(t, b, c)
				r := s.do(on(1, c))
				if r.status != http.StatusCreated || r.replayed != fmt.Sprint(b.done) {
					t.Errorf("%s: %v; want a grant, replayed: %v", c.path, r, b.done)
				}
				s.instances[0].revive()
				wantReplay(t, s.do(c), r)
			}
			s.wantPoints(1001, 0)
			if n := s.count("SELECT COUNT(*) FROM t_coupon")*10 + s.count("SELECT COUNT(*) FROM t_coupon_code"); n != 21 {
				t.Errorf("coupons and codes: %d; want two and one", n)
			}
			s.wantSound()
		})
	}
}

// B41, B44, B102: without Redis one user claims a coupon fifty times at once and redeems twenty times with points for one. One of
// each is given; every key keeps its answer.
func TestWithoutRedisGrantsAreGivenOnce(t *testing.T) {
	s := newGrants(t)
	s.earn(1001, 150)
	disturb(t, s, redisDown)
	for _, c := range []struct {
		n    int
		ask  func(on, i int) call
		want map[string]int
	}{
		{50, func(on, i int) call { return claim(on, 1001, "sale", key("claim-%d", i)) }, map[string]int{"201 ": 1, "200 ": 49}},
		{20, func(on, i int) call { return redeem(on, 1001, "sale", key("redeem-%d", i)) }, map[string]int{"201 ": 1, "409 points_insufficient": 19}},
	} {
		replies := s.all(c.n, func(i int) call { return c.ask(i, i) })
		if got := tally(replies); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("answers %v; want %v", got, c.want)
		}
		given := make(map[string]bool)
		for i, r := range replies {
			given[grantOf(r)] = true
			wantReplay(t, s.do(c.ask(i+1, i)), r)
		}
		if delete(given, ""); len(given) != 1 {
			t.Errorf("the answers name the coupons %v; want one", given)
		}
	}
	s.wantPoints(1001, 50)
	for name, query := range map[string]string{
		"coupons": "SELECT COUNT(*) FROM t_coupon WHERE activity_id <> ''", "redemptions": "SELECT COUNT(*) FROM t_coupon WHERE activity_id = ''",
		"entries": "SELECT COUNT(*) FROM t_point_entry WHERE kind = 'redeem'",
	} {
		if n := s.count(query); n != 1 {
			t.Errorf("%d %s, want 1", n, name)
		}
	}
	s.wantSound()
}

// B52: what one instance has granted, the other one knows at once.
func TestTheOtherInstanceKnowsOfAGrantAtOnce(t *testing.T) {
	s := newGrants(t)
	s.earn(1001, 1000)
	for i := range 10 {
		s.couponSale(fmt.Sprint("sale-", i), 10, 1)
		for _, c := range []call{claim(i, 1001, fmt.Sprint("sale-", i), key("claim-%d", i)), redeem(i, 1001, "sale", key("redeem-%d", i))} {
			made := s.must(http.StatusCreated, c)
			if r := s.must(http.StatusOK, call{on: i + 1, as: buyer(1001), path: "/v1/me/coupons"}); !strings.Contains(string(r.body), grantOf(made)) {
				t.Errorf("the list lacks %s: %v", grantOf(made), r)
			}
			wantReplay(t, s.do(on(i+1, c)), made)
			buy := withCoupon(create(i+1, 1001, 1, key("buy-%s", grantOf(made)), ""), grantOf(made))
			s.wantCoupon(1001, grantOf(made), "USED", s.must(http.StatusCreated, buy).field("order_no"))
		}
		s.wantPoints(1001, int64(1000-100*(i+1)))
	}
	s.wantSound()
}

// B58: clients of redemptions, claims and orders with coupons leave at random. Never points without their coupon, never a coupon
// without its order; the same requests in peace have one result each.
func TestClientsThatLeaveTearNoGrantApart(t *testing.T) {
	s := newGrants(t)
	const n, clients, redeemers = 300, 16, 10
	for i := range redeemers {
		s.earn(int64(1001+i), 100*n/3/redeemers)
	}
	for _, i := range s.instances { // so that many leave between an effect and its COMMIT
		i.mysql.On(testenv.Contains("UPDATE t_idempotency_key"), -1, testenv.Jitter(10*time.Millisecond))
	}
	calls, replies := make([]call, n), make([]reply, n)
	for i := range calls {
		switch user := int64(2000 + i); i % 3 {
		case 0:
			calls[i] = redeem(i, int64(1001+i/3%redeemers), "sale", key("redeem-%d", i))
		case 1:
			calls[i] = claim(i, user, "sale", key("claim"))
		default:
			calls[i] = withCoupon(create(i, user, 1, key("order"), ""), s.coupon(user, "sale"))
		}
	}
	var next, left atomic.Int64
	testenv.Together(clients, func(int) {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			// As in storm: up to 30 ms is when a request is at work; every fourth has time enough.
			ctx, leave := context.WithTimeout(t.Context(), rand.N(30*time.Millisecond)+time.Duration(i%4/3)*time.Minute)
			c := calls[i]
			c.ctx = ctx
			if replies[i] = s.do(c); replies[i].err != nil {
				left.Add(1)
			}
			leave()
		}
	})
	if left.Load() == 0 || left.Load() == n {
		t.Errorf("%d of %d clients left; want some", left.Load(), n)
	}
	s.untilIdle(t)
	s.wantSound() // before anything is sent again
	for i, c := range calls {
		again := s.finally(t, c)
		if replies[i].err == nil && replies[i].status < http.StatusMultipleChoices {
			wantReplay(t, again, replies[i])
		}
	}
	for i := range redeemers {
		s.wantPoints(int64(1001+i), 0)
	}
	got := [3]int{s.count("SELECT COUNT(*) FROM t_point_entry WHERE kind = 'redeem'"), s.count("SELECT COUNT(*) FROM t_coupon"), s.count("SELECT COUNT(*) FROM t_coupon WHERE status = 1")}
	if got != [3]int{n / 3, n, n / 3} {
		t.Errorf("redemptions, coupons, used ones = %v; want %d, %d, %d", got, n/3, n, n/3)
	}
	s.wantSound()
}
