package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"example.com/oncepay/internal/audit"
	"example.com/oncepay/internal/auth"
)

// The operator's routes: who is let in, what a repeat does, and what is on record.

// deed is a way for an operator to change something.
type deed struct {
	route  string
	action string // in t_audit
	// make prepares what the deed is about and describes the request, under a key or, with "", under none.
	make func(s *stack, n int) call
	// twice is how many records the same request leaves when it comes twice without a key; 0: it needs one.
	twice int
	// sides is from how many sides at once it comes under one key; 0: a PUT, which takes none; 1: its work is more than one
	// transaction, so that twins may all do it, and only what comes afterwards is spared.
	sides int
}

func deeds() []deed {
	post := func(format string, args ...any) call {
		return call{as: operator, method: http.MethodPost, path: fmt.Sprintf(format, args...)}
	}
	return []deed{
		{"POST /v1/coupon-codes", "coupon_code.create", func(*stack, int) call {
			return call{as: operator, path: "/v1/coupon-codes", body: `{"template":"t"}`}
		}, 0, 20},
		{"POST /v1/orders/{order_no}/ship", "order.ship", func(s *stack, n int) call {
			orderNo, _ := s.paid(int64(2000 + n))
			return post("/v1/orders/%s/ship", orderNo)
		}, 1, 20}, // it is shipped already
		{"POST /v1/ops/exceptions/{id}/resolve", "exception.resolve", func(s *stack, n int) call {
			c := post("/v1/ops/exceptions/%d/resolve", s.trouble(int64(2000+n)))
			c.body = `{"resolution":"asked the channel"}`
			return c
		}, 1, 20}, // the first resolution stands
		{"POST /v1/ops/notices/{id}/replay", "notice.replay", func(s *stack, n int) call {
			orderNo, _ := s.paid(int64(2000 + n))
			return post("/v1/ops/notices/%d/replay", s.count("SELECT id FROM t_channel_notice WHERE order_no = ?", orderNo))
		}, 2, 20}, // looked at twice, and applied at most once
		{"POST /v1/ops/reconciliations", "reconciliation.run", func(s *stack, n int) call {
			return reconcile(0, s.channelDay(-n), "")
		}, 2, 1}, // run twice, and nothing found twice
		{"POST /v1/ops/dead-letters/{id}/replay", "dead_letter.replay", func(s *stack, n int) call {
			return post("/v1/ops/dead-letters/%d/replay", s.letter(int64(2000+n)))
		}, 1, 20}, // it is no dead letter any more
		{"POST /v1/ops/dead-letters/{id}/discard", "dead_letter.discard", func(s *stack, n int) call {
			c := post("/v1/ops/dead-letters/%d/discard", s.letter(int64(2000+n)))
			c.body = `{"reason":"nobody needs it"}`
			return c
		}, 1, 20},
		{"POST /v1/ops/skus/{sku_id}/stock-movements", "stock.move", func(*stack, int) call { return moveStock(1, 5, "") }, 2, 20}, // two deliveries
		{"PUT /v1/ops/skus/{sku_id}", "sku.change", func(s *stack, n int) call {
			s.sku(int64(100+n), 1, 1)
			return call{as: operator, method: http.MethodPut, path: fmt.Sprintf("/v1/ops/skus/%d", 100+n), body: `{"title":"x","price":2,"currency":"CNY","stock":1}`}
		}, 2, 0},
		{"PUT /v1/ops/activities/{activity_id}", "activity.change", func(s *stack, n int) call {
			s.activity(fmt.Sprint("a", n))
			return call{as: operator, method: http.MethodPut, path: fmt.Sprint("/v1/ops/activities/a", n), body: `{"title":"x","starts_at":"2000-01-01T00:00:00Z","ends_at":"2999-01-01T00:00:00Z"}`}
		}, 2, 0},
	}
}

// trouble makes an open exception about wrong money and returns its id.
func (s *stack) trouble(user int64) int {
	s.t.Helper()
	_, n := s.offered(user)
	n.Amount--
	wantAck(s.t, s.notify(0, n))
	return s.count("SELECT MAX(id) FROM t_exception")
}

// letter makes a dead letter, mends what it failed of, and returns its id.
func (s *stack) letter(user int64) int {
	s.t.Helper()
	orderNo, _ := s.paid(user)
	s.poison(orderNo)
	s.cure(orderNo)
	return s.count("SELECT id FROM t_message_dedup WHERE msg_key = ?", orderNo)
}

// channelDay is one of the channel's days, counted from today.
func (s *stack) channelDay(offset int) string {
	return s.instances[0].clock.now().In(time.FixedZone("", 8*60*60)).AddDate(0, 0, offset).Format(time.DateOnly)
}

// opsRoutes lists the routes that a user is not let in to, as docs/openapi.yaml says.
func opsRoutes(t *testing.T) (routes []string) {
	t.Helper()
	for route, op := range documented(t) {
		if op.Responses.Value("403") != nil && !strings.Contains(route, " /ops") {
			routes = append(routes, route)
		}
	}
	slices.Sort(routes)
	return routes
}

// Every route that begins with /v1/ops, and the two others that only operators may call, refuse a user with 403 and nobody with 401,
// before anything is looked at, and leave no record. All that change something are in the table of deeds.
func TestOnlyOperatorsAreLetIn(t *testing.T) {
	s := newStack(t)
	known := make(map[string]bool)
	for _, d := range deeds() {
		known[d.route] = true
	}
	routes := opsRoutes(t)
	err := chi.Walk(bareRouter(t), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if strings.HasPrefix(route, "/v1/ops/") && !slices.Contains(routes, method+" "+route) {
			t.Errorf("%s %s is not documented as the operators'", method, route)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		if method != http.MethodGet && !known[route] {
			t.Errorf("%s is in no test of what operators do", route)
		}
		c := call{method: method, path: strings.NewReplacer("{id}", "1", "{sku_id}", "1", "{activity_id}", "a", "{order_no}", strings.Repeat("0", 32)).Replace(path)}
		wantProblem(t, s.do(c), http.StatusUnauthorized, "bearer_missing")
		c.as = buyer(1001)
		wantProblem(t, s.do(c), http.StatusForbidden, "ops_only")
	}
	if n := s.count("SELECT COUNT(*) FROM t_audit"); n != 0 || len(routes) == 0 {
		t.Errorf("%d records after %d routes, want none", n, len(routes))
	}
	s.wantSound()
}

// The page is for operators too: nobody gets the way in to see, and cannot press a button.
func TestThePageAsksWhoIsThere(t *testing.T) {
	s := newStack(t)
	r := s.must(http.StatusOK, call{path: "/ops"})
	if !strings.Contains(string(r.body), `name="token"`) || strings.Contains(string(r.body), "logout") {
		t.Errorf("nobody sees: %s", r.body)
	}
	if status, body := form(t, s.visitor(nil), s.instances[0].url+"/ops/exceptions/1/resolve", url.Values{"resolution": {"x"}}, nil); status != http.StatusUnauthorized {
		t.Errorf("nobody resolves: %d %s", status, body)
	}
	s.wantSound()
}

// What an operator asks for under a key is done once and is on record once, whichever instance it comes to again, and twenty times at
// once; the repeat has the same bytes. Without a key a repeat is harmless, or is what the operator said: a second delivery.
func TestAnOperatorsDeedIsDoneAndOnRecordOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 30000, 100)
	s.couponSale("t", 10, 100)
	for i, d := range deeds() {
		if d.sides > 0 {
			s.deedUnderAKey(d, 10*i)
		}
		s.deedWithoutAKey(d, 10*i+1)
		if t.Failed() {
			t.Fatalf("it was %s", d.route)
		}
	}
	s.wantSound()
}

func (s *stack) onRecord(d deed) int {
	s.t.Helper()
	return s.count("SELECT COUNT(*) FROM t_audit WHERE action = ?", d.action)
}

func (s *stack) deedUnderAKey(d deed, n int) {
	s.t.Helper()
	c := d.make(s, n)
	c.key = key("deed-%d", n)
	before := s.onRecord(d)
	replies := s.all(d.sides, func(i int) call { return on(i, c) })
	first := slices.IndexFunc(replies, func(r reply) bool { return r.replayed == "false" })
	if first < 0 {
		s.t.Fatalf("none of %v was the first", replies)
	}
	for _, r := range append(replies, s.do(c), s.do(on(1, c))) {
		if r.status != replies[first].status || string(r.body) != string(replies[first].body) || r.status >= http.StatusMultipleChoices {
			s.t.Errorf("got %v; want the bytes of %v", r, replies[first])
		}
	}
	if n := s.onRecord(d) - before; n != 1 {
		s.t.Errorf("%d records of a deed under one key, want 1", n)
	}
}

func (s *stack) deedWithoutAKey(d deed, n int) {
	s.t.Helper()
	c := d.make(s, n)
	if d.twice == 0 {
		wantProblem(s.t, s.do(c), http.StatusBadRequest, "idempotency_key_required")
		return
	}
	before := s.onRecord(d)
	for i := range 2 {
		if r := s.do(on(i, c)); r.status >= http.StatusMultipleChoices {
			s.t.Errorf("without a key: %v", r)
		}
	}
	if n := s.onRecord(d) - before; n != d.twice {
		s.t.Errorf("%d records of two requests without a key, want %d", n, d.twice)
	}
}

// An operator's cancel, finish and refund of somebody's order are on record as well; the owner's own are not.
func TestWhatOperatorsDoToOrdersIsOnRecord(t *testing.T) {
	s := newStack(t)
	s.sku(1, 30000, 100)
	for _, by := range []auth.Caller{operator, buyer(1001)} {
		cancelled := s.order(1001, 1)
		finished, _ := s.paid(1001)
		refunded, _ := s.paid(1001)
		for _, c := range []call{
			s.step(1001, cancelled, "cancel", key("cancel-%s", cancelled)), s.step(1001, finished, "finish", key("finish-%s", finished)),
			refundCall(0, 1001, refunded, 100, key("refund-%s", refunded)),
		} {
			c.as = by
			first := s.do(c)
			wantReplay(t, s.do(on(1, c)), first)
		}
	}
	if got := s.text("SELECT GROUP_CONCAT(action ORDER BY id) FROM t_audit WHERE action NOT LIKE 'sku.%' AND actor_id = 1"); got != "order.cancel,order.finish,refund.create" {
		t.Errorf("on record: %s; want what the operator did to three orders", got)
	}
	if n := s.count("SELECT COUNT(*) FROM t_audit WHERE actor_id <> 1"); n != 0 {
		t.Errorf("%d records of what a user did, want none", n)
	}
	s.wantSound()
}

// GET /v1/ops/audit goes over all records once, newest first, also while new ones come in.
func TestTheAuditIsReadNewestFirst(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	for i := range 7 {
		s.must(http.StatusCreated, moveStock(1, int64(i+1), key("delivery-%d", i)))
	}
	var got []audit.Record
	for query, pages := "?limit=3", 0; query != ""; pages++ {
		var page struct {
			Data       []audit.Record `json:"data"`
			NextCursor string         `json:"next_cursor"`
		}
		r := s.must(http.StatusOK, call{on: pages, as: operator, path: "/v1/ops/audit" + query})
		if err := json.Unmarshal(r.body, &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Data) > 3 || pages > 3 {
			t.Fatalf("page %d: %s", pages, r.body)
		}
		got, query = append(got, page.Data...), ""
		if page.NextCursor != "" {
			query = "?limit=3&cursor=" + url.QueryEscape(page.NextCursor)
		}
		s.must(http.StatusCreated, moveStock(1, 100, key("meanwhile-%d", pages)))
	}
	if len(got) != 8 {
		t.Fatalf("%d records, want 8: %+v", len(got), got)
	}
	for i, r := range got[:7] {
		want := audit.Record{ID: r.ID, ActorID: operator.UserID, Action: "stock.move", Subject: "sku:1", Detail: fmt.Sprintf("+%d: delivery", 7-i), RequestID: r.RequestID, CreatedAt: r.CreatedAt}
		if r != want || r.ID <= got[i+1].ID || r.RequestID == "" || r.CreatedAt.Before(got[i+1].CreatedAt) {
			t.Errorf("record %d: %+v, before %+v; want %+v", i, r, got[i+1], want)
		}
	}
	if got[7].Action != "sku.create" {
		t.Errorf("the oldest is %+v, want the SKU's making", got[7])
	}
	s.wantSound()
}
