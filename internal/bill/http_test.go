package bill

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"example.com/oncepay/internal/web"
)

// ask makes a request to the handlers, under a key if there is one.
func (f *fixture) ask(ctx context.Context, method, path, body, key string) *httptest.ResponseRecorder {
	h := &HTTP{Service: f.Service, Keys: f.keys}
	r := chi.NewRouter()
	r.Post("/v1/ops/reconciliations", web.Handle(h.Run))
	r.Get("/v1/ops/reconciliations", web.Handle(h.List))
	r.Get("/v1/ops/reconciliations/{id}", web.Handle(h.Get))
	req := httptest.NewRequestWithContext(web.WithRequestID(ctx, "test", slog.New(slog.DiscardHandler)), method, path, strings.NewReader(body))
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w
}

const body = `{"channel":"mockpay","date":"2026-05-01"}`

// The first run of a day is 201, later ones 200, and under a key the first answer is given again without another run.
func TestAnOperatorRunsADay(t *testing.T) {
	f := newFixture(t)
	s := f.offer()
	f.buy(s)
	const key = "a-key-of-twenty-letters"
	first := f.ask(t.Context(), "POST", "/v1/ops/reconciliations", body, key)
	if first.Code != 201 || first.Header().Get("Location") != "/v1/ops/reconciliations/1" || first.Header().Get("Idempotent-Replayed") != "false" {
		t.Errorf("%d %v %s; want 201", first.Code, first.Header(), first.Body)
	}
	sha := regexp.MustCompile(`"bill_sha256":"[0-9a-f]{64}"`).ReplaceAllString(first.Body.String(), `"bill_sha256":"x"`)
	want := `{"id":1,"channel":"mockpay","date":"2026-05-01","status":"DONE","complete":false,"runs":1,"bill_lines":1,"matched":0,"bill_sha256":"x","last_error":"",` +
		`"created_at":"2026-05-01T12:00:00Z","updated_at":"2026-05-01T12:00:00Z","differences":[{"id":1,"kind":"channel_only","subject":"payment:` + s.tradeNo +
		`","order_no":"` + s.orderNo + `","our_amount":null,"bill_amount":100,"currency":"CNY","status":"REPAIRED","detail":"order PAID","created_at":"2026-05-01T12:00:00Z"}]}` + "\n"
	if sha != want {
		t.Errorf("got  %swant %s", sha, want)
	}
	again := f.ask(t.Context(), "POST", "/v1/ops/reconciliations", body, key)
	if again.Code != 201 || again.Body.String() != first.Body.String() || again.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("the same key: %d %v %s", again.Code, again.Header(), again.Body)
	}
	f.want(1, "SELECT runs FROM t_reconciliation")
	if w := f.ask(t.Context(), "POST", "/v1/ops/reconciliations", strings.Replace(body, "05-01", "04-30", 1), key); w.Code != 422 {
		t.Errorf("another request under the key: %d %s", w.Code, w.Body)
	}
	second := f.ask(t.Context(), "POST", "/v1/ops/reconciliations", body, "")
	if second.Code != 200 || second.Header().Get("Location") != "/v1/ops/reconciliations/1" || !strings.Contains(second.Body.String(), `"runs":2`) {
		t.Errorf("the second run: %d %s", second.Code, second.Body)
	}
	shown := f.ask(t.Context(), "GET", "/v1/ops/reconciliations/1", "", "")
	if shown.Code != 200 || shown.Body.String() != second.Body.String() {
		t.Errorf("shown: %d %s", shown.Code, shown.Body)
	}
	f.run("2026-04-30")
	list := f.ask(t.Context(), "GET", "/v1/ops/reconciliations?limit=1", "", "")
	if got := list.Body.String(); list.Code != 200 || !strings.Contains(got, `"date":"2026-04-30"`) || strings.Contains(got, "differences") || strings.Contains(got, `"next_cursor":""`) {
		t.Errorf("list: %d %s", list.Code, got)
	}
	cursor := regexp.MustCompile(`"next_cursor":"([^"]+)"`).FindStringSubmatch(list.Body.String())[1]
	if got := f.ask(t.Context(), "GET", "/v1/ops/reconciliations?cursor="+cursor, "", "").Body.String(); !strings.Contains(got, `"id":1,`) || strings.Contains(got, "2026-04-30") {
		t.Errorf("the next page: %s", got)
	}
}

func TestWhatIsNoDayOfAChannelIsRefused(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"POST", "", `{"channel":"nobody","date":"2026-05-01"}`, 404, "channel_not_found"},
		{"POST", "", `{"channel":"mockpay","date":"2026-05-02"}`, 400, "bill_day_invalid"}, // tomorrow at the channel
		{"POST", "", `{"channel":"mockpay","date":"yesterday"}`, 400, "bill_day_invalid"},
		{"POST", "", `{"channel":"mockpay"}`, 400, "bill_day_invalid"},
		{"POST", "", `{"channel":"mockpay","date":"2026-05-01","force":true}`, 400, "body_invalid"},
		{"GET", "/1", "", 404, "reconciliation_not_found"}, {"GET", "/0", "", 400, "id_invalid"}, {"GET", "/x", "", 400, "id_invalid"},
		{"GET", "?limit=0", "", 400, "limit_invalid"},
	} {
		w := f.ask(t.Context(), c.method, "/v1/ops/reconciliations"+c.path, c.body, "")
		if w.Code != c.status || !strings.Contains(w.Body.String(), `"code":"`+c.code+`"`) {
			t.Errorf("%s %s %s: %d %s; want %d %s", c.method, c.path, c.body, w.Code, w.Body, c.status, c.code)
		}
	}
	f.want(0, "SELECT COUNT(*) FROM t_reconciliation")
}

// A refused bill is 503, uses up no key, and is tried again with the same one.
func TestARefusedBillIsTriedAgainUnderTheSameKey(t *testing.T) {
	f := newFixture(t)
	const key = "a-key-of-twenty-letters"
	f.spoil(`{"wrong_sha":true,"times":1}`)
	w := f.ask(t.Context(), "POST", "/v1/ops/reconciliations", body, key)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "60" || !strings.Contains(w.Body.String(), `"code":"bill_checksum_mismatch"`) ||
		!strings.Contains(w.Body.String(), `"retryable":true`) {
		t.Errorf("%d %v %s; want 503", w.Code, w.Header(), w.Body)
	}
	if w = f.ask(t.Context(), "POST", "/v1/ops/reconciliations", body, key); w.Code != 200 {
		t.Errorf("%d %s; want 200", w.Code, w.Body)
	}
}

// A run that does not fit into its request is answered before the request's time is up, and says where to look.
func TestALongRunIsAnsweredInTime(t *testing.T) {
	f := newFixture(t)
	f.buy(f.offer())
	f.ch.silent = true
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	w := f.ask(ctx, "POST", "/v1/ops/reconciliations", body, "")
	if w.Code != http.StatusAccepted || w.Header().Get("Location") != "/v1/ops/reconciliations/1" || !strings.Contains(w.Body.String(), `"status":"RUNNING"`) {
		t.Errorf("%d %v %s; want 202", w.Code, w.Header(), w.Body)
	}
	if err := ctx.Err(); err != nil {
		t.Errorf("the answer came too late: %v", err)
	}
}
