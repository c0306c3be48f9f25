package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/testenv"
)

// B01: the unique index is (caller, key), not (key).
func TestEveryCallerHasKeysOfTheirOwn(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	const rounds = 20
	users := []int64{1001, 1002}
	replies := s.all(rounds*len(users), func(i int) call { return create(i/2, users[i%2], 1, key("round-%d", i/2), "") })
	for i, r := range replies {
		if r.status != http.StatusCreated || r.field("user_id") != fmt.Sprint(users[i%2]) {
			t.Errorf("user %d got %v; want an order of their own", users[i%2], r)
		}
		twin := replies[i^1] // the other user's, under the same key
		if shown := s.lookUp(users[i%2], key("round-%d", i/2)); !strings.Contains(string(shown.body), r.field("order_no")) ||
			strings.Contains(string(shown.body), twin.field("order_no")) {
			t.Errorf("user %d looks the key up and sees %v", users[i%2], shown)
		}
	}
	if orders := distinct(replies, "order_no"); len(orders) != len(replies) {
		t.Errorf("%d orders, want %d", len(orders), len(replies))
	}
	wantProblem(t, s.lookUp(1003, key("round-0")), http.StatusNotFound, "idempotency_key_not_found")

	second := auth.Caller{UserID: 2, Ops: true}
	for _, as := range []auth.Caller{operator, second} {
		c := moveStock(1, 5, key("delivery"))
		c.as = as
		if r := s.do(c); r.status != http.StatusCreated || r.replayed != "false" {
			t.Errorf("operator %d: %v; want a movement of their own", as.UserID, r)
		}
	}
	s.wantRows(len(replies))
	s.wantSound()
}

// B03: the same body under another path, or with another query, is another request.
func TestAKeyBelongsToOnePathAndQuery(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	s.sku(2, 0, 1000) // free of charge, so its orders are PAID
	withQuery := func(c call) call { c.path += "?a=1"; return c }
	cases := map[string][2]call{
		"cancel": {s.step(1001, s.order(1001, 1), "cancel", ""), s.step(1001, s.order(1001, 1), "cancel", "")},
		"ship":   {s.step(1001, s.order(1001, 2), "ship", ""), s.step(1001, s.order(1001, 2), "ship", "")},
		"finish": {s.step(1001, s.order(1001, 2), "finish", ""), s.step(1001, s.order(1001, 2), "finish", "")},
		"stock":  {moveStock(1, 5, ""), moveStock(2, 5, "")},
		"query":  {create(0, 1001, 1, "", ""), withQuery(create(0, 1001, 1, "", ""))},
	}
	for name, c := range cases {
		one, other := c[0], c[1]
		one.key, other.key = key("%s-K1", name), key("%s-K1", name)
		first := s.do(one)
		if first.status >= http.StatusMultipleChoices {
			t.Errorf("%s: %v", name, first)
		}
		refused := s.do(on(1, other))
		wantProblem(t, refused, http.StatusUnprocessableEntity, "idempotency_key_reused")
		if refused.field("retryable") != "false" || refused.field("layer") != "idempotency_key" {
			t.Errorf("%s: %v; want not retryable, by layer idempotency_key", name, refused)
		}
		wantReplay(t, s.do(on(1, one)), first)
		other.key = key("%s-K2", name)
		if r := s.do(other); r.status != first.status || string(r.body) == string(first.body) {
			t.Errorf("%s under a key of its own: %v", name, r)
		}
	}
	s.wantSound()
}

// B04: a refusal is the key's answer; a changed request needs a new key and then simply works.
func TestAChangedRequestNeedsANewKey(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 3)
	buy := func(quantity int, key string) call {
		c := create(0, 1001, 1, key, "")
		c.body = fmt.Sprintf(`{"sku_id":1,"quantity":%d}`, quantity)
		return c
	}
	first := s.do(buy(5, key("K1")))
	wantProblem(t, first, http.StatusConflict, "out_of_stock")
	changed := s.do(on(1, buy(2, key("K1"))))
	wantProblem(t, changed, http.StatusUnprocessableEntity, "idempotency_key_reused")
	if changed.field("retryable") != "false" {
		t.Errorf("%v says that repeating helps", changed)
	}
	wantReplay(t, s.do(on(1, buy(5, key("K1")))), first)
	if r := s.do(buy(2, key("K2"))); r.status != http.StatusCreated {
		t.Errorf("the changed request under a key of its own: %v", r)
	}
	// Other spacing and another order of the fields are the same request.
	same := buy(0, key("K1"))
	same.body = "{ \"quantity\" : 5,\n\"sku_id\":1 }"
	wantReplay(t, s.do(same), first)
	s.wantRows(1)
	s.wantSound()
}

// B07: a failure that passes is never the key's answer. B41: the same with Redis.
func TestAnOutageIsNotStored(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	token := s.token(1001)
	c := create(0, 1001, 1, key("K1"), token)
	s.instances[0].mysql.Down()
	wantUndecided(t, s.do(c))
	wantUndecided(t, s.lookUp(1001, key("K1")))
	s.instances[0].mysql.Up()
	first := s.do(c)
	if first.status != http.StatusCreated || first.replayed != "false" {
		t.Errorf("after the outage: %v; want the first run", first)
	}
	wantReplay(t, s.do(on(1, c)), first)
	s.wantRows(1)
	s.wantSound()
}

// B08: out_of_stock is final for its key, and uses up no token.
func TestARefusalIsFinalForItsKeyOnly(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 0)
	token := s.token(1001)
	first := s.do(create(0, 1001, 1, key("K1"), token))
	wantProblem(t, first, http.StatusConflict, "out_of_stock")
	s.must(http.StatusCreated, moveStock(1, 10, ""))
	wantReplay(t, s.do(create(1, 1001, 1, key("K1"), token)), first)
	if r := s.do(create(1, 1001, 1, key("K2"), token)); r.status != http.StatusCreated {
		t.Errorf("K2 with the same token: %v; want an order", r)
	}
	s.wantRows(1)
	s.wantSound()
}

// B08: 429 stores nothing and uses nothing up. The other early refusals are in TestAFaultyRequestUsesNothingUp.
func TestTooManyRequestsUseNothingUp(t *testing.T) {
	s := newStack(t, "RATE_LIMIT=2")
	s.sku(1, 1999, 1000)
	token := s.token(1001)
	var limited call
	testenv.Eventually(t, setupWait, "a create is refused by the rate limit", func() error {
		for n := range 3 { // of the allowed two a second
			c := create(0, 1001, 1, key("K%d", n), token)
			c.body = `{"sku_id":99,"quantity":1}` // 404, if it gets that far
			if r := s.do(c); r.status == http.StatusTooManyRequests {
				wantProblem(t, r, http.StatusTooManyRequests, "rate_limited")
				limited = create(0, 1001, 1, c.key, token)
				return nil
			}
		}
		return fmt.Errorf("not yet")
	})
	if r := s.finally(t, limited); r.status != http.StatusCreated || r.replayed != "false" {
		t.Errorf("after a while: %v; want the first run", r)
	}
	s.wantRows(1)
	s.wantSound()
}

// B10: the records of keys go, the business keys stay.
func TestBusinessKeysOutliveTheRetention(t *testing.T) {
	for name, price := range map[string]int64{"unpaid": 1999, "paid": 0} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, price, 1000)
			s.activity("sale")
			calls := []call{
				create(0, 1001, 1, key("K1"), ""),
				create(0, 1001, 1, key("K2"), s.token(1001)),
				inActivity(create(0, 1001, 1, key("K3"), ""), "sale"),
			}
			var orders []string
			for _, c := range calls {
				orders = append(orders, s.must(http.StatusCreated, c).field("order_no"))
				record := s.lookUp(1001, c.key)
				made, _ := time.Parse(time.RFC3339, record.field("created_at"))
				ends, err := time.Parse(time.RFC3339, record.field("expires_at"))
				if err != nil || ends.Sub(made) != s.instances[0].svc.cfg.KeyRetention || record.field("state") != "done" {
					t.Errorf("the record does not show when it expires: %v", record)
				}
			}
			s.must(http.StatusCreated, moveStock(1, 7, key("K4")))
			for _, i := range s.instances {
				i.clock.advance(i.svc.cfg.KeyRetention + time.Minute)
			}
			for i, c := range calls {
				wantProblem(t, s.lookUp(1001, c.key), http.StatusNotFound, "idempotency_key_not_found")
				again := s.do(on(1, c))
				wantOrder(t, again, orders[i])
				wantReplay(t, s.do(c), again) // the key answers again, for another retention
			}
			if r := s.do(on(1, moveStock(1, 7, key("K4")))); r.status != http.StatusCreated {
				t.Errorf("the delivery again: %v", r)
			}
			if n := s.count("SELECT initial FROM t_sku"); n != 1007 {
				t.Errorf("stock put on the shelf: %d, want 1007", n)
			}
			s.wantRows(len(calls))
			s.wantSound()
		})
	}
}

// B11: the same purchase under new keys is the same purchase.
func TestNewKeysForOnePurchaseMakeOneOrder(t *testing.T) {
	for _, where := range []string{"with a token", "in an activity"} {
		for _, how := range []string{"in turn", "in parallel"} {
			t.Run(where+" "+how, func(t *testing.T) {
				s := newStack(t)
				s.sku(1, 1999, 1000)
				s.activity("sale")
				token := s.token(1001)
				buy := func(i int) call { return create(i, 1001, 1, key("K%d", i), token) }
				if where == "in an activity" {
					buy = func(i int) call { return inActivity(create(i, 1001, 1, key("K%d", i), ""), "sale") }
				}
				var replies []reply
				if how == "in parallel" {
					replies = s.all(8, buy)
				} else {
					for i := range 8 {
						replies = append(replies, s.do(buy(i)))
					}
				}
				for _, r := range replies {
					wantOrder(t, r, replies[0].field("order_no"))
				}
				s.wantRows(1)
				s.wantSound()
			})
		}
	}
}

// B14: what is as long as allowed is kept apart, what is longer is refused.
func TestLongestPartsStayApart(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	long := strings.Repeat("k", 254)
	longID := strings.Repeat("a", 63)
	s.activity(longID + "A")
	s.activity(longID + "B")
	var replies []reply
	for _, user := range []int64{1<<63 - 1, 1<<63 - 2} {
		for _, end := range []string{"A", "B"} {
			replies = append(replies,
				s.do(create(0, user, 1, long+end, "")),
				s.do(create(0, user, 1, key("token-%s", end), s.token(user))),
				s.do(inActivity(create(0, user, 1, key("activity-%s", end), ""), longID+end)))
		}
	}
	if orders := distinct(replies, "order_no"); len(orders) != len(replies) {
		t.Errorf("%d orders for %d purchases: %v", len(orders), len(replies), tally(replies))
	}
	if n := s.count("SELECT MAX(LENGTH(biz_token)) FROM t_order"); n > 64 {
		t.Errorf("the longest biz_token has %d bytes", n)
	}
	over := func(body string) call { c := create(0, 1001, 1, key("over"), ""); c.body = body; return c }
	wantProblem(t, s.do(create(0, 1001, 1, long+"AB", "")), http.StatusBadRequest, "idempotency_key_invalid")
	for _, value := range []string{strings.Repeat("a", 65), strings.Repeat("𝔸", 64)} { // 𝔸 has four bytes
		wantProblem(t, s.do(over(fmt.Sprintf(`{"sku_id":1,"quantity":1,"activity_id":%q}`, value))), http.StatusBadRequest, "activity_id_invalid")
		wantProblem(t, s.do(over(fmt.Sprintf(`{"sku_id":1,"quantity":1,"coupon_no":%q}`, value))), http.StatusBadRequest, "coupon_no_invalid")
	}
	s.wantRows(len(replies))
	s.wantSound()
}

// everyKeyed lists a request of each route that demands a key, without one.
func (s *stack) everyKeyed() []call {
	s.t.Helper()
	s.sku(1, 100, 1000)
	s.couponSale("sale", 10, 10)
	s.earn(1001, 300)
	paid, _ := s.paid(1001)
	calls := []call{
		create(0, 1001, 1, "", ""), payCall(0, 1001, s.order(1001, 1), "mockpay", ""), refundCall(0, 1001, paid, 10, ""),
		claim(0, 1001, "sale", ""), redeem(0, 1001, "sale", ""), makeCode(0, "sale", ""),
	}
	for i := range calls {
		calls[i].method = http.MethodPost
	}
	return calls
}

// What creates something or moves money says so when it gets no key, and does nothing.
func TestWhatDemandsAKeyDoesNothingWithoutOne(t *testing.T) {
	s := newStack(t)
	calls := s.everyKeyed()
	before := s.count("SELECT COUNT(*) FROM t_idempotency_key")
	for i, c := range calls {
		wantProblem(t, s.do(c), http.StatusBadRequest, "idempotency_key_required")
		c.key = key("K%d", i)
		if r := s.do(c); r.status >= http.StatusMultipleChoices || r.replayed != "false" {
			t.Errorf("%s with a key: %v", c.path, r)
		}
	}
	if n := s.count("SELECT COUNT(*) FROM t_idempotency_key") - before; n != len(calls) {
		t.Errorf("%d keys are stored, want %d", n, len(calls))
	}
	s.wantSound()
}

// DERIVE_IDEMPOTENCY_KEYS=5s: equal requests of callers who send no key are one for five seconds, on both instances and on every
// route that demands a key, but for codes, each of which is new; after that the same request is a new one. A key that was sent always
// wins, and so does a submit token of its own.
func TestOldCallersGetAKeyForAWhile(t *testing.T) {
	s := newStack(t, "DERIVE_IDEMPOTENCY_KEYS=5s")
	calls := s.everyKeyed()
	code := calls[len(calls)-1]
	calls = calls[:len(calls)-1]
	wantProblem(t, s.do(code), http.StatusBadRequest, "idempotency_key_required")
	for range 2 { // the same form filled in twice
		buy := calls[0]
		buy.as, buy.token = buyer(1002), s.token(1002)
		s.must(http.StatusCreated, buy)
	}
	if n := s.count("SELECT COUNT(*) FROM t_order WHERE user_id = 1002"); n != 2 {
		t.Errorf("%d orders of two submit tokens, want 2", n)
	}
	now := s.instances[0].clock.now()
	stop := func(at time.Time) {
		for _, i := range s.instances {
			i.clock.stop(at)
		}
	}
	for i, c := range calls {
		stop(now)
		first := s.do(c)
		derived := first.header.Get("Idempotency-Key-Derived")
		if first.status >= http.StatusMultipleChoices || first.replayed != "false" || derived == "" {
			t.Errorf("%s: %v, derived key %q; want a first run that names its key", c.path, first, derived)
		}
		stop(now.Add(5*time.Second - time.Microsecond))
		again := s.do(on(1, c))
		wantReplay(t, again, first)
		if got := again.header.Get("Idempotency-Key-Derived"); got != derived {
			t.Errorf("%s: the second key is %q, the first %q", c.path, got, derived)
		}
		sent := c
		sent.key = key("K%d", i)
		if r := s.do(sent); r.replayed != "false" || r.header.Get("Idempotency-Key-Derived") != "" {
			t.Errorf("%s with a key: %v, derived key %q", c.path, r, r.header.Get("Idempotency-Key-Derived"))
		}
		stop(now.Add(5 * time.Second))
		if r := s.do(on(1, c)); r.status >= http.StatusMultipleChoices || r.replayed != "false" || r.header.Get("Idempotency-Key-Derived") == derived {
			t.Errorf("%s after five seconds: %v; want a new request", c.path, r)
		}
	}
	for what, n := range map[string]int{
		"t_order WHERE user_id = 1001 AND status = 0": 4, // derived, sent, derived again, and the one of the open attempt
		"t_payment WHERE status <> 3":                 1, // the open attempt is given again
		"t_refund":                                    3,
		"t_coupon WHERE activity_id = 'sale'":         1,
		"t_point_entry WHERE kind = 'redeem'":         3,
	} {
		if got := s.count("SELECT COUNT(*) FROM " + what); got != n {
			t.Errorf("%d of %s, want %d", got, what, n)
		}
	}
	s.wantSound()
}

// DISABLE_GUARDS=idempotency_key stores and replays nothing; the business keys still hold.
func TestWithoutTheKeyGuardTheBusinessKeysHold(t *testing.T) {
	s := newStack(t, "DISABLE_GUARDS="+config.GuardIdempotencyKey)
	s.sku(1, 1999, 1000)
	replies := s.all(20, func(i int) call { return create(i, 1001, 1, key("K1"), "") })
	for _, r := range replies {
		wantOrder(t, r, replies[0].field("order_no"))
	}
	for i := range 2 {
		if r := s.do(on(i, moveStock(1, 7, key("K4")))); r.status != http.StatusCreated {
			t.Errorf("delivery: %v", r)
		}
	}
	if n := s.count("SELECT initial FROM t_sku"); n != 1007 {
		t.Errorf("stock put on the shelf: %d, want 1007", n)
	}
	if n := s.count("SELECT COUNT(*) FROM t_idempotency_key"); n != 0 {
		t.Errorf("%d key records, want none", n)
	}
	s.wantRows(1)
	s.wantSound()
}
