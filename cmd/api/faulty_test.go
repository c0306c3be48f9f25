package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/config"
)

// fault makes a good create a bad one, which gets its own clear answer.
type fault struct {
	name   string
	spoil  func(c *call)
	status int
	code   string
}

func header(name string, values ...string) func(*call) {
	return func(c *call) { c.header = http.Header{name: values} }
}

func body(text string) func(*call) { return func(c *call) { c.body = text } }

func bearer(t *testing.T, secret string, user int64, life time.Duration) func(*call) {
	t.Helper()
	signed, err := auth.Sign(secret, buyer(user), time.Now().Add(life))
	if err != nil {
		t.Fatal(err)
	}
	return header("Authorization", "Bearer "+signed)
}

func headerFaults(t *testing.T) []fault {
	return []fault{
		{"no bearer", header("Authorization"), 401, "bearer_missing"},
		{"another scheme", header("Authorization", "Basic dXNlcjpwYXNz"), 401, "bearer_invalid"},
		{"no JWT", header("Authorization", "Bearer x.y.z"), 401, "bearer_invalid"},
		{"two bearers", header("Authorization", "Bearer a", "Bearer b"), 401, "bearer_invalid"},
		{"algorithm none", header("Authorization", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiIxMDAxIn0."), 401, "bearer_invalid"},
		{"another secret", bearer(t, strings.Repeat("x", 40), 1001, time.Hour), 401, "bearer_invalid"},
		{"no positive user", bearer(t, config.DevJWTSecret, 0, time.Hour), 401, "bearer_invalid"},
		{"expired bearer", bearer(t, config.DevJWTSecret, 1001, -time.Minute), 401, "bearer_expired"},

		{"no key", header("Idempotency-Key"), 400, "idempotency_key_required"},
		{"empty key", header("Idempotency-Key", ""), 400, "idempotency_key_invalid"},
		{"short key", header("Idempotency-Key", strings.Repeat("k", 19)), 400, "idempotency_key_invalid"},
		{"long key", header("Idempotency-Key", strings.Repeat("k", 256)), 400, "idempotency_key_invalid"},
		{"key with a space", header("Idempotency-Key", strings.Repeat("k", 20)+" k"), 400, "idempotency_key_invalid"},
		{"key in half quotes", header("Idempotency-Key", `"`+strings.Repeat("k", 20)), 400, "idempotency_key_invalid"},
		{"key in two pairs of quotes", header("Idempotency-Key", `""`+strings.Repeat("k", 20)+`""`), 400, "idempotency_key_invalid"},
		{"two keys", header("Idempotency-Key", strings.Repeat("k", 20), strings.Repeat("k", 20)), 400, "idempotency_key_invalid"},

		{"empty token", header("X-Submit-Token", ""), 400, "submit_token_invalid"},
		{"long token", header("X-Submit-Token", strings.Repeat("t", 65)), 400, "submit_token_invalid"},
		{"two tokens", header("X-Submit-Token", "a", "b"), 400, "submit_token_invalid"},
		{"token nobody issued", header("X-Submit-Token", strings.Repeat("0", 32)), 409, "token_spent"},

		{"form type", header("Content-Type", "application/x-www-form-urlencoded"), 415, "unsupported_media_type"},
		{"text type", header("Content-Type", "text/plain"), 415, "unsupported_media_type"},
		{"another charset", header("Content-Type", "application/json; charset=gbk"), 415, "unsupported_media_type"},

		{"method", func(c *call) { c.method = http.MethodDelete }, 405, "method_not_allowed"},
		{"path", func(c *call) { c.path = "/v1/ordres" }, 404, "route_not_found"},
	}
}

// B06: what the decoder reads and what the fingerprint covers are the same, as nothing that two readers could take for
// different things is let in.
func bodyFaults() []fault {
	return []fault{
		{"field twice", body(`{"sku_id":1,"quantity":100,"quantity":1}`), 400, "body_invalid"},
		{"field twice, other case", body(`{"sku_id":1,"quantity":100,"QUANTITY":1}`), 400, "body_invalid"},
		{"field in another case", body(`{"SKU_ID":1,"quantity":1}`), 400, "body_invalid"},
		{"field that only folds equal", body(`{"sku_id":1,"ſku_id":2,"quantity":1}`), 400, "body_invalid"},
		{"field twice, once escaped", body(`{"sku_id":1,"quantity":1,"quantit\u0079":2}`), 400, "body_invalid"},
		{"unknown field", body(`{"sku_id":1,"quantity":1,"price":1}`), 400, "body_invalid"},
		{"nested twice", body(`{"sku_id":1,"quantity":1,"activity_id":{"a":1,"a":2}}`), 400, "body_invalid"},
		{"second document", body(`{"sku_id":1,"quantity":1}{"sku_id":1,"quantity":2}`), 400, "body_invalid"},
		{"trailing comma", body(`{"sku_id":1,"quantity":1,}`), 400, "body_invalid"},
		{"comment", body(`{"sku_id":1,"quantity":1}//`), 400, "body_invalid"},
		{"broken UTF-8", body("{\"sku_id\":1,\"quantity\":1,\"activity_id\":\"\xff\"}"), 400, "body_invalid"},
		{"byte order mark", body("\ufeff" + `{"sku_id":1,"quantity":1}`), 400, "body_invalid"},
		{"broken off", body(`{"sku_id":1,"quantity":`), 400, "body_invalid"},
		{"nothing", body(` `), 400, "body_invalid"},
		{"null", body(`null`), 400, "body_invalid"},
		{"list", body(`[]`), 400, "body_invalid"},
		{"text for a number", body(`{"sku_id":"1","quantity":1}`), 400, "body_invalid"},
		{"fraction", body(`{"sku_id":1,"quantity":1.5}`), 400, "body_invalid"},
		{"number past int64", body(`{"sku_id":1,"quantity":9223372036854775808}`), 400, "body_invalid"},
		{"too large", body(`{"sku_id":1,"quantity":1}` + strings.Repeat(" ", 64<<10)), 413, "body_too_large"},

		{"no sku_id", body(`{"quantity":1}`), 400, "field_invalid"},
		{"sku_id 0", body(`{"sku_id":0,"quantity":1}`), 400, "field_invalid"},
		{"no quantity", body(`{"sku_id":1}`), 400, "field_invalid"},
		{"quantity -1", body(`{"sku_id":1,"quantity":-1}`), 400, "field_invalid"},
		{"quantity past its limit", body(`{"sku_id":1,"quantity":2147483648}`), 400, "field_invalid"},
		{"amount that cannot be counted", body(`{"sku_id":2,"quantity":2147483647}`), 400, "amount_out_of_range"},
		{"empty activity_id", body(`{"sku_id":1,"quantity":1,"activity_id":""}`), 400, "activity_id_invalid"},
		{"empty coupon_no", body(`{"sku_id":1,"quantity":1,"coupon_no":""}`), 400, "coupon_no_invalid"},
		{"goods that are not there", body(`{"sku_id":99,"quantity":1}`), 404, "sku_not_found"},
		{"activity that is not there", body(`{"sku_id":1,"quantity":1,"activity_id":"none"}`), 404, "activity_not_found"},
		{"coupon that is not theirs", body(`{"sku_id":1,"quantity":1,"coupon_no":"none"}`), 404, "coupon_not_found"},
	}
}

// B06, B08: each faulty request gets its own answer, leaves no row, and the same key and token then simply work.
func TestAFaultyRequestUsesNothingUp(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	s.sku(2, 1<<62, 1<<31-1)
	for made, f := range append(headerFaults(t), bodyFaults()...) {
		good := create(made, 1001, 1, key("%d", made), s.token(1001))
		bad := good
		f.spoil(&bad)
		if r := s.do(bad); r.status != f.status || r.field("code") != f.code {
			t.Errorf("%s: got %v; want %d %s", f.name, r, f.status, f.code)
		} else {
			wantProblem(t, r, f.status, f.code)
			wantWellFormed(t, r)
		}
		s.wantRows(made)
		if n := s.count("SELECT COUNT(*) FROM t_idempotency_key"); n != made {
			t.Errorf("%s: %d key records, want %d", f.name, n, made)
		}
		if r := s.do(good); r.status != http.StatusCreated || r.replayed != "false" {
			t.Fatalf("%s, and then the good request with the same key and token: %v", f.name, r)
		}
	}
	if n := s.hits("token", "order.create", "degraded"); n != 0 {
		t.Errorf("%d claims were skipped; this proves nothing about tokens then", n)
	}
	s.wantSound()
}

// wantWellFormed asserts what every problem has (contract section 2).
func wantWellFormed(t *testing.T, r reply) {
	t.Helper()
	for _, member := range []string{"type", "title", "status", "detail", "code", "retryable", "request_id"} {
		if r.field(member) == "" {
			t.Errorf("the problem lacks %q: %s", member, r.body)
		}
	}
	if r.field("status") != fmt.Sprint(r.status) || r.field("request_id") != r.header.Get("X-Request-Id") {
		t.Errorf("the problem says otherwise than the response: %v, %v", r, r.header)
	}
	if r.status == http.StatusUnauthorized && r.header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("401 without WWW-Authenticate: %v", r.header)
	}
}

// A body that ends before its Content-Length: 400, and nothing happened.
func TestATornBodyIsRefused(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.instances[0].url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/orders HTTP/1.1\r\nHost: test\r\nAuthorization: %s\r\nIdempotency-Key: %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n%s",
		s.bearer(buyer(1001)), key("K1"), `{"sku_id":1,"quantity":1}`)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("got %v, %v; want 400", resp, err)
	}
	s.wantRows(0)
	if r := s.do(create(0, 1001, 1, key("K1"), "")); r.status != http.StatusCreated || r.replayed != "false" {
		t.Errorf("the whole request under the same key: %v", r)
	}
	s.wantSound()
}

// A key may stand in one pair of double quotes, which are not part of it.
func TestAQuotedKeyIsTheSameKey(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	first := s.must(http.StatusCreated, create(0, 1001, 1, key("K1"), ""))
	wantReplay(t, s.do(create(1, 1001, 1, `"`+key("K1")+`"`, "")), first)
	s.wantRows(1)
	s.wantSound()
}

// B06: the operators' bodies are read as strictly, nested ones too.
func TestOperatorsBodiesAreReadStrictly(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	const times = `"starts_at":"2026-01-01T00:00:00Z","ends_at":"2026-02-01T00:00:00Z"`
	for path, bodies := range map[string][]string{
		"/v1/ops/skus/7": {
			`{"title":"a","price":100,"price":1,"currency":"CNY","stock":1}`,
			`{"title":"a","price":100,"Price":1,"currency":"CNY","stock":1}`,
			`{"title":"a","price":1,"currency":"CNY","stock":1,"sold":1}`,
		},
		"/v1/ops/activities/sale": {
			`{"title":"a",` + times + `,"coupon":{"template":"t","discount":1,"discount":100,"limit":1}}`,
			`{"title":"a",` + times + `,"coupon":{"template":"t","discount":1,"Discount":100,"limit":1}}`,
			`{"title":"a",` + times + `,"coupon":{"template":"t","discount":1,"limit":1,"more":1}}`,
			`{"title":"a",` + times + `}{}`,
		},
		"/v1/ops/skus/1/stock-movements": {`{"delta":1,"delta":100,"reason":"x"}`, `{"delta":1,"reason":"x","kind":"sold"}`},
		"/v1/ops/reconciliations": {
			`{"channel":"mockpay","channel":"mockpay2","date":"2026-01-01"}`, `{"channel":"mockpay","date":"2026-01-01","Date":"2026-01-02"}`,
			`{"channel":"mockpay","date":"2026-01-01","repair":true}`, `{"channel":"mockpay","date":"2026-01-01"}{}`,
		},
	} {
		for _, b := range bodies {
			c := call{as: operator, method: http.MethodPut, path: path, body: b}
			if strings.HasSuffix(path, "movements") || strings.HasSuffix(path, "reconciliations") {
				c.method, c.key = http.MethodPost, key("K1")
			}
			wantProblem(t, s.do(c), http.StatusBadRequest, "body_invalid")
		}
	}
	wantProblem(t, s.do(call{as: buyer(1001), path: "/v1/tokens", body: `{"scene":"order.create","scene":"x"}`}), http.StatusBadRequest, "body_invalid")
	wantProblem(t, s.do(call{as: buyer(1001), path: "/v1/tokens", body: `{"scene":"refund"}`}), http.StatusBadRequest, "scene_unknown")
	cancel := s.step(1001, s.order(1001, 1), "cancel", key("K2"))
	cancel.body = `{"reason":"x"}`
	wantProblem(t, s.do(cancel), http.StatusBadRequest, "body_invalid")
	cancel.body = ""
	if r := s.do(cancel); r.status != http.StatusOK || r.replayed != "false" {
		t.Errorf("the cancel under the same key: %v", r)
	}
	rows := 0
	for _, table := range []string{"t_sku", "t_activity", "t_stock_movement WHERE kind = 'adjust'", "t_reconciliation"} {
		rows += s.count("SELECT COUNT(*) FROM " + table)
	}
	if rows != 1 {
		t.Errorf("%d rows, want one: the SKU that was there", rows)
	}
	s.wantSound()
}
