package web

import (
	"bytes"
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/mysqldb"
)

const secretText = "SELECT balance FROM t_secret at 10.0.0.7"

// serve runs a handler that fails with err, and returns the response, the problem's members and the log.
func serve(t *testing.T, err error) (*httptest.ResponseRecorder, map[string]any, string) {
	t.Helper()
	var log bytes.Buffer
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r = r.WithContext(WithRequestID(r.Context(), "req-1", slog.New(slog.NewTextHandler(&log, nil))))
	w := httptest.NewRecorder()
	Handle(func(*http.Request) (Answer, error) { return Answer{}, err })(w, r)
	var members map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &members); err != nil {
		t.Fatalf("the problem is not JSON: %v: %s", err, w.Body)
	}
	return w, members, log.String()
}

func TestEveryKindHasItsStatus(t *testing.T) {
	for kind, want := range map[apperr.Kind]int{
		apperr.Internal: 500, apperr.Invalid: 400, apperr.Unauthenticated: 401, apperr.Forbidden: 403, apperr.NotFound: 404,
		apperr.Conflict: 409, apperr.InProgress: 409, apperr.KeyReused: 422, apperr.TooLarge: 413, apperr.UnsupportedMedia: 415,
		apperr.MethodNotAllowed: 405, apperr.RateLimited: 429, apperr.Unavailable: 503,
	} {
		if got := Status(kind); got != want {
			t.Errorf("kind %d: %d, want %d", kind, got, want)
		}
	}
}

func TestAProblemHasAllItsMembers(t *testing.T) {
	err := apperr.New(apperr.InProgress, "idempotency_in_progress", "Ask again.").At(apperr.LayerIdempotencyKey).
		After(1100*time.Millisecond).With("token", "fresh").Wrap(errors.New(secretText))
	w, got, log := serve(t, fmt.Errorf("create order: %w", err))
	want := map[string]any{
		"type": "/docs/errors#idempotency_in_progress", "title": "Conflict", "status": 409.0, "detail": "Ask again.",
		"code": "idempotency_in_progress", "layer": "idempotency_key", "retryable": true, "request_id": "req-1", "token": "fresh",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if w.Code != 409 || w.Header().Get("Content-Type") != "application/problem+json" || w.Header().Get("Retry-After") != "2" {
		t.Errorf("status %d, header %v; want 409, and Retry-After in whole seconds, rounded up", w.Code, w.Header())
	}
	if !strings.Contains(log, secretText) || !strings.Contains(log, "req-1") || strings.Count(log, "\n") != 1 {
		t.Errorf("want one log line with the cause and the request id:\n%s", log)
	}
}

func TestMembersThatSayNothingAreLeftOut(t *testing.T) {
	w, got, _ := serve(t, apperr.New(apperr.NotFound, "order_not_found", "There is no such order."))
	want := []string{"code", "detail", "request_id", "retryable", "status", "title", "type"}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
		t.Errorf("members %v, want %v", names, want)
	}
	if got["retryable"] != false || w.Header().Get("Retry-After") != "" {
		t.Errorf("%v, Retry-After %q", got, w.Header().Get("Retry-After"))
	}
}

// A 5xx never shows internals; what the database could not do or nobody knows is a retryable 503 (B59), all else a 500.
func TestAFaultShowsNothingOfItsCause(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		status int
		retry  string
	}{
		"unclassified":     {errors.New(secretText), 500, ""},
		"sql error":        {&mysql.MySQLError{Number: 1146, Message: secretText}, 500, ""},
		"duplicate":        {&mysql.MySQLError{Number: 1062, Message: secretText}, 500, ""},
		"lock wait":        {fmt.Errorf("%s: %w", secretText, &mysql.MySQLError{Number: 1205, Message: secretText}), 503, "1"},
		"read only":        {&mysql.MySQLError{Number: 1290, Message: secretText}, 503, "1"},
		"bad connection":   {fmt.Errorf("%s: %w", secretText, driver.ErrBadConn), 503, "1"},
		"unknown outcome":  {fmt.Errorf("%w: %s", mysqldb.ErrOutcomeUnknown, secretText), 503, "1"},
		"stale":            {fmt.Errorf("%w: %s", mysqldb.ErrStale, secretText), 503, "1"},
		"deadline":         {fmt.Errorf("%s: %w", secretText, context.DeadlineExceeded), 503, "1"},
		"broken off":       {fmt.Errorf("%s: %w", secretText, io.ErrUnexpectedEOF), 503, "1"},
		"ours, with cause": {apperr.New(apperr.Unavailable, "redis_down", "Later.").Wrap(errors.New(secretText)), 503, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, got, log := serve(t, c.err)
			if w.Code != c.status || got["status"] != float64(c.status) || got["retryable"] != true || w.Header().Get("Retry-After") != c.retry {
				t.Errorf("status %d, Retry-After %q, %v", w.Code, w.Header().Get("Retry-After"), got)
			}
			if strings.Contains(w.Body.String(), "secret") || strings.Contains(w.Body.String(), "10.0.0.7") {
				t.Errorf("shows internals: %s", w.Body)
			}
			if !strings.Contains(log, secretText) || !strings.Contains(log, "level=ERROR") {
				t.Errorf("the log does not tell: %s", log)
			}
		})
	}
}

func TestAProblemThatCannotBeEncodedIsStillAProblem(t *testing.T) {
	w, got, _ := serve(t, apperr.New(apperr.Conflict, "x", "x").With("f", func() {}))
	if w.Code != 500 || got["status"] != 500.0 || got["code"] != "internal" {
		t.Errorf("status %d, %v", w.Code, got)
	}
	_, got, _ = serve(t, apperr.New(apperr.Invalid, "x", "you sent %s", "\xbf\x27"))
	if got["code"] != "x" {
		t.Errorf("bytes that are no UTF-8 in a detail: %v", got)
	}
}

func TestAnAnswerIsSentAsItIs(t *testing.T) {
	w := httptest.NewRecorder()
	Write(w, Answer{Status: 201, ContentType: "application/json", Location: "/v1/orders/1", RetryAfter: 3, Replay: Replayed, Body: []byte("{}\n")})
	h := w.Header()
	if w.Code != 201 || w.Body.String() != "{}\n" || h.Get("Location") != "/v1/orders/1" || h.Get("Retry-After") != "3" ||
		h.Get("Idempotent-Replayed") != "true" || h.Get("WWW-Authenticate") != "" {
		t.Errorf("%d %v %q", w.Code, h, w.Body)
	}
	for replay, want := range map[Replay][]string{NoKey: nil, FirstRun: {"false"}, Replayed: {"true"}} {
		w := httptest.NewRecorder()
		Write(w, Answer{Status: 200, Replay: replay})
		if got := w.Header().Values("Idempotent-Replayed"); !slices.Equal(got, want) {
			t.Errorf("replay %d: %v, want %v", replay, got, want)
		}
	}
	w = httptest.NewRecorder()
	Write(w, Answer{Status: 401})
	if w.Header().Get("WWW-Authenticate") != "Bearer" {
		t.Error("a 401 without WWW-Authenticate")
	}
}

func TestEqualValuesHaveEqualBytes(t *testing.T) {
	v := map[string]int{"c": 3, "a": 1, "b": 2, "d": 4, "e": 5}
	for range 20 {
		a, err := JSON(200, v)
		if err != nil || string(a.Body) != `{"a":1,"b":2,"c":3,"d":4,"e":5}`+"\n" {
			t.Fatalf("%s, %v", a.Body, err)
		}
	}
	if _, err := JSON(200, func() {}); err == nil {
		t.Error("what is no JSON is encoded")
	}
}
