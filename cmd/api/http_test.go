package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/oncepay/internal/testenv"
)

// Another user's order is not there, for reading and for moving; shipping is the operator's.
func TestOthersOrdersAreNotThere(t *testing.T) {
	s := newStack(t)
	s.sku(1, 0, 1000)
	orderNo := s.order(1001, 1)
	for _, c := range []call{
		{as: buyer(1002), path: "/v1/orders/" + orderNo},
		s.step(1002, orderNo, "cancel", ""),
		s.step(1002, orderNo, "finish", key("K1")),
		{as: buyer(1001), path: "/v1/orders/" + strings.ToUpper(orderNo)},
		{as: buyer(1001), path: "/v1/orders/%27%20OR%201=1"},
	} {
		wantProblem(t, s.do(c), http.StatusNotFound, "order_not_found")
	}
	for _, c := range []call{
		{as: buyer(1001), method: http.MethodPost, path: "/v1/orders/" + orderNo + "/ship"},
		{as: buyer(1001), path: "/v1/ops/invariants"},
		{as: buyer(1001), path: "/v1/ops/skus/1"},
		{as: buyer(1001), path: "/v1/ops/dead-letters"},
		{as: buyer(1001), path: "/v1/ops/reconciliations"},
		{as: buyer(1001), path: "/v1/ops/audit"},
		{as: buyer(1001), path: "/v1/coupon-codes", body: `{"template":"t"}`, key: key("code")},
	} {
		wantProblem(t, s.do(c), http.StatusForbidden, "ops_only")
	}
	for _, as := range []call{{as: buyer(1001)}, {as: operator}} {
		as.path = "/v1/orders/" + orderNo
		if r := s.do(as); r.status != http.StatusOK || r.field("status") != "PAID" || r.field("paid_at") == "" {
			t.Errorf("owner and operator see it; got %v", r)
		}
	}
	if r := s.do(s.step(1002, s.order(1002, 1), "finish", key("K1"))); r.status != http.StatusOK {
		t.Errorf("404 used the key up: %v", r)
	}
	s.wantSound()
}

// Asking again for what has happened is 200 with the order, without any key; what cannot happen is refused.
func TestAStepAskedForAgainIsDone(t *testing.T) {
	s := newStack(t)
	s.sku(1, 0, 1000)
	s.sku(2, 1999, 1000)
	paid, unpaid := s.order(1001, 1), s.order(1001, 2)
	for _, step := range []struct {
		order, verb, status string
	}{{unpaid, "cancel", "CANCELLED"}, {paid, "ship", "SHIPPED"}, {paid, "finish", "FINISHED"}, {paid, "ship", "FINISHED"}} {
		replies := s.all(10, func(i int) call { return on(i, s.step(1001, step.order, step.verb, "")) })
		for _, r := range replies {
			if r.status != http.StatusOK || r.field("status") != step.status || r.replayed != "" {
				t.Errorf("%s: %v; want 200 and %s", step.verb, r, step.status)
			}
		}
	}
	for _, c := range []call{s.step(1001, unpaid, "ship", ""), s.step(1001, unpaid, "finish", ""), s.step(1001, paid, "cancel", "")} {
		wantProblem(t, s.do(c), http.StatusConflict, "order_state_illegal")
	}
	if n := s.count("SELECT COUNT(*) FROM t_order_history"); n != 6 {
		t.Errorf("%d moves, want 6: made, paid, shipped, finished; made, cancelled", n)
	}
	s.wantSound()
}

// A list is walked from the newest to the oldest, each order once, also while new ones come; nobody sees another's.
func TestACursorWalksOverAllOrdersOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	var mine []string
	for range 25 {
		mine = append(mine, s.order(1001, 1))
		s.order(1002, 1)
	}
	var seen []string
	path := "/v1/orders?limit=10"
	for pages := 1; path != ""; pages++ {
		r := s.must(http.StatusOK, call{on: pages, as: buyer(1001), path: path})
		var list struct {
			Data []struct {
				OrderNo string `json:"order_no"`
			}
			NextCursor string `json:"next_cursor"`
		}
		if err := json.Unmarshal(r.body, &list); err != nil || pages > 3 {
			t.Fatalf("page %d: %v, %v", pages, r, err)
		}
		for _, o := range list.Data {
			seen = append(seen, o.OrderNo)
		}
		path = ""
		if list.NextCursor != "" {
			path = "/v1/orders?limit=10&cursor=" + list.NextCursor
		}
		s.order(1001, 1) // comes before the pages already read
	}
	for i, orderNo := range seen {
		if i >= len(mine) || orderNo != mine[len(mine)-1-i] {
			t.Fatalf("the walk gave %q\nfor %q", seen, mine)
		}
	}
	if len(seen) != len(mine) {
		t.Errorf("saw %d orders of %d", len(seen), len(mine))
	}
	for path, want := range map[string]int{"/v1/orders": 20, "/v1/orders?limit=100": 53, "/v1/orders?limit=100&user_id=1002": 25} {
		if r := s.do(call{as: operator, path: path}); strings.Count(string(r.body), `"order_no"`) != want {
			t.Errorf("the operator's %s has not %d orders: %v", path, want, r)
		}
	}
	s.wantSound()
}

// B64: what is no page is 400, on every list.
func TestBadPagesAreRefused(t *testing.T) {
	s := newStack(t)
	lists := []string{
		"/v1/orders", "/v1/me/coupons", "/v1/me/points", "/v1/ops/exceptions", "/v1/ops/dead-letters", "/v1/ops/reconciliations", "/v1/ops/audit",
	}
	for query, code := range map[string]string{
		"limit=abc": "limit_invalid", "limit=-5": "limit_invalid", "limit=0": "limit_invalid", "limit=101": "limit_invalid",
		"limit=1e9": "limit_invalid", "limit=": "limit_invalid", "limit=1&limit=2": "limit_invalid",
		"cursor=x": "cursor_invalid", "cursor=": "cursor_invalid", "cursor=YTA": "cursor_invalid", "cursor=YS01": "cursor_invalid",
		"cursor=YTE&cursor=YTE": "cursor_invalid", "cursor=YTE=": "cursor_invalid",
	} {
		for _, list := range lists {
			wantProblem(t, s.do(call{as: operator, path: list + "?" + query}), http.StatusBadRequest, code)
		}
	}
	wantProblem(t, s.do(call{as: operator, path: "/v1/orders?user_id=-1"}), http.StatusBadRequest, "user_id_invalid")
	wantProblem(t, s.do(call{as: buyer(1001), path: "/v1/me/coupons?status=unused"}), http.StatusBadRequest, "status_invalid")
	for _, list := range lists {
		if r := s.do(call{as: operator, path: list + "?limit=100&cursor=YTE"}); r.status != http.StatusOK || !strings.Contains(string(r.body), `"data":[]`) {
			t.Errorf("a good cursor of %s: %v", list, r)
		}
	}
	s.wantSound()
}

// X-Request-Id is in the header, the problem, the message, the history and every log line; free text is not taken over.
func TestARequestIDGoesAllTheWay(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1)
	c := create(0, 1001, 1, key("K1"), "")
	c.header = http.Header{"X-Request-Id": {"trace-0001"}}
	if r := s.do(c); r.status != http.StatusCreated || r.header.Get("X-Request-Id") != "trace-0001" {
		t.Errorf("got %v, %v", r, r.header)
	}
	for _, table := range []string{"t_outbox", "t_order_history"} {
		if n := s.count("SELECT COUNT(*) FROM " + table + " WHERE request_id = 'trace-0001'"); n != 1 {
			t.Errorf("%d rows of %s have it, want 1", n, table)
		}
	}
	refused := create(0, 1001, 1, key("K2"), "")
	refused.header = http.Header{"X-Request-Id": {"trace-0002"}}
	if r := s.do(refused); r.status != http.StatusConflict || r.field("request_id") != "trace-0002" {
		t.Errorf("the problem does not have it: %v", r)
	}
	for _, id := range []string{"trace-0001", "trace-0002"} {
		line := "msg=served request_id=" + id
		testenv.Eventually(t, setupWait, line, func() error { // written after the answer has gone out
			if !strings.Contains(s.instances[0].logs.String(), line) {
				return fmt.Errorf("not in the log")
			}
			return nil
		})
	}
	for _, id := range []string{"with space", `"quoted"`, "a=b", strings.Repeat("x", 129), "\xbf'", "🙂"} {
		r := s.do(call{as: buyer(1001), path: "/v1/orders", header: http.Header{"X-Request-Id": {id}}})
		if got := r.header.Get("X-Request-Id"); uuid.Validate(got) != nil {
			t.Errorf("%q became %q, want a new UUID", id, got)
		}
	}
	s.wantSound()
}

// B40, B41: readiness tells what works, and flags a Redis that may drop locks.
func TestReadinessTellsWhatWorks(t *testing.T) {
	private := testenv.PrivateRedis(t)
	s := newStackOn(t, testenv.Database(t), private.URL(), "DISABLE_GUARDS=lock")
	i := s.instances[0]
	want := func(status int, state string, texts ...string) {
		t.Helper()
		r := s.do(call{path: "/readyz"})
		if r.status != status || r.field("status") != state {
			t.Errorf("got %v; want %d %s", r, status, state)
		}
		for _, text := range append(texts, "guard lock is disabled") {
			if !strings.Contains(string(r.body), text) {
				t.Errorf("readiness does not say %q: %s", text, r.body)
			}
		}
	}
	want(http.StatusOK, "ready", `"mysql":"ok"`, `"redis":"ok"`)
	client := testenv.OpenRedis(t, private.URL())
	if err := client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	want(http.StatusOK, "degraded", "allkeys-lru", "noeviction")
	if err := client.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err(); err != nil {
		t.Fatal(err)
	}
	i.redis.Down()
	want(http.StatusOK, "degraded", `"redis":"unreachable"`)
	i.mysql.Down()
	want(http.StatusServiceUnavailable, "unavailable", `"mysql":"unreachable"`)
	if r := s.do(call{path: "/healthz"}); r.status != http.StatusOK {
		t.Errorf("alive, though nothing works: %v", r)
	}
	i.revive()
	testenv.Eventually(t, setupWait, "ready again", func() error {
		if r := s.do(call{path: "/readyz"}); r.field("status") != "ready" {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	s.wantSound()
}

// The metrics show what each guard did.
func TestMetricsShowTheGuards(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	for range 3 {
		s.must(http.StatusCreated, create(0, 1001, 1, key("K1"), ""))
	}
	r := s.do(call{path: "/metrics"})
	for _, line := range []string{
		`guard_hits_total{guard="idempotency_key",operation="order.create",outcome="passed"} 1`,
		`guard_hits_total{guard="idempotency_key",operation="order.create",outcome="replayed"} 2`,
		`guard_hits_total{guard="lock",operation="order.create",outcome="passed"} 1`,
		`guard_hits_total{guard="unique_index",operation="order.create",outcome="passed"} 1`,
		`http_request_duration_seconds_count{method="POST",route="/v1/orders",status="201"}`,
	} {
		if !strings.Contains(string(r.body), line) {
			t.Errorf("metrics lack %s", line)
		}
	}
	s.wantSound()
}

// bomb goes off at the n-th time it is passed.
type bomb struct {
	left  atomic.Int64
	value any
}

func (b *bomb) pass() {
	if b.left.Add(-1) == 0 {
		panic(b.value)
	}
}

// wire puts a bomb at every point where the data layer asks for the time or for an order number: before, inside and
// between the statements of the transaction, with token and lock in hand.
func (b *bomb) wire(svc *service) {
	now := svc.now
	ticking := func() time.Time { b.pass(); return now() }
	svc.orders.Now, svc.keys.Now = ticking, ticking
	svc.orders.NewOrderNo = func() (string, error) { b.pass(); return newOrderNo() }
}

// B64: a panic is a 500 without internals; transaction, lock, claim and key are free at once. net/http's abort is passed on.
func TestAPanicLeavesNothingBehind(t *testing.T) {
	for name, value := range map[string]any{"panic": "kaboom", "abort": http.ErrAbortHandler} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 0, 1000) // a free order goes through all there is: made and paid
			b := &bomb{value: value}
			b.wire(s.instances[0].svc)
			made := 0
			for {
				c := create(0, 1001, 1, key("K%d", made), s.token(1001))
				b.left.Store(int64(made + 1))
				r := s.do(c)
				if b.left.Load() > 0 { // there are no more points
					break
				}
				switch {
				case name == "panic":
					wantProblem(t, r, http.StatusInternalServerError, "internal")
				case r.err == nil: // B62: net/http's client has sent the POST again by itself, as it carries an Idempotency-Key
					wantReplay(t, s.do(on(1, c)), r)
				}
				if strings.Contains(string(r.body), "kaboom") {
					t.Errorf("the answer shows the panic: %s", r.body)
				}
				again := s.do(on(1, c))
				if again.status != http.StatusCreated || again.took > time.Second {
					t.Fatalf("the same request after panic %d: %v after %v; want an order at once", made+1, again, again.took)
				}
				made++
			}
			if made < 5 {
				t.Errorf("only %d points were tried", made)
			}
			s.wantRows(made + 1) // and the one that met no bomb
			s.wantSound()
		})
	}
}

// B63: the deadline ends the request, not the promise: a retry waits or is told to, and in the end there is one result.
func TestALateAnswerDoublesNothing(t *testing.T) {
	for _, at := range []string{"INSERT INTO t_outbox", "COMMIT"} {
		t.Run(at, func(t *testing.T) {
			s := newStack(t, "REQUEST_TIMEOUT=1s", "LOCK_WAIT=200ms")
			s.sku(1, 1999, 1000)
			c := create(0, 1001, 1, key("K1"), "")
			gate := testenv.NewGate(t)
			s.instances[0].mysql.On(testenv.Contains(at), 1, testenv.Hold(gate))
			first := s.background(c)
			gate.WaitEntered(t, 1)
			// Well under MySQL's own limits (3 s for a lock, 6 s for an answer): it is the deadline that ends a request.
			const inTime = 2500 * time.Millisecond
			retry := func() {
				t.Helper()
				r := s.do(on(1, c))
				if r.status < 400 || r.field("retryable") != "true" || r.header.Get("Retry-After") == "" || r.took > inTime {
					t.Errorf("the retry got %v after %v; want to be told to ask again, in time", r, r.took)
				}
			}
			retry()             // while the first is at work
			if at != "COMMIT" { // which is waited for, as nothing can call it back
				r := <-first
				if wantUndecided(t, r); r.took > inTime {
					t.Errorf("the first was answered after %v", r.took)
				}
				retry() // while MySQL still has the first one's transaction
			}
			gate.Open()
			last := s.finally(t, on(1, c))
			if at == "COMMIT" {
				wantReplay(t, last, <-first)
			}
			s.wantRows(1)
			s.wantSound()
		})
	}
}

// The documentation is served by the service itself, to anyone.
func TestDocumentationIsServed(t *testing.T) {
	s := newStack(t)
	for path, text := range map[string]string{"/docs": "", "/openapi.yaml": "openapi: 3.", "/docs/errors": "out_of_stock"} {
		resp, err := testClient.Get(s.instances[0].url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), text) {
			t.Errorf("%s: %d, %v, %d bytes; want 200 with %q", path, resp.StatusCode, err, len(body), text)
		}
	}
	s.wantSound()
}
