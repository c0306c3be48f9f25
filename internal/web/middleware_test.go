package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"example.com/oncepay/internal/metrics"
)

// observed serves one request through Observe.
func observed(r *http.Request, h http.HandlerFunc) (w *httptest.ResponseRecorder, log string, m *metrics.Metrics) {
	var b bytes.Buffer
	m = metrics.New()
	router := chi.NewRouter()
	router.Use(Observe(slog.New(slog.NewTextHandler(&b, nil)), m, time.Now))
	router.NotFound(Handle(NoRoute))
	router.HandleFunc("/things/{id}", h)
	w = httptest.NewRecorder()
	router.ServeHTTP(w, r)
	return w, b.String(), m
}

func get(path string) *http.Request { return httptest.NewRequest(http.MethodGet, path, nil) }

func TestAWellFormedRequestIDIsTakenOverAndAnyOtherReplaced(t *testing.T) {
	for id, taken := range map[string]bool{
		"abc-DEF_1.2:3": true, strings.Repeat("x", maxRequestID): true,
		"": false, strings.Repeat("x", maxRequestID+1): false, "a b": false, "a\nb": false, "a'b": false, "é": false, `a\b`: false,
		"a\x00": false, "{a}": false, "a/b": false, "a=b": false, "😀": false,
	} {
		r := get("/things/1")
		r.Header["X-Request-Id"] = []string{id}
		var seen string
		w, log, _ := observed(r, func(_ http.ResponseWriter, r *http.Request) { seen = RequestID(r.Context()) })
		if got := w.Header().Get("X-Request-Id"); got != seen || seen == "" || (seen == id) != taken {
			t.Errorf("%q: the handler saw %q, the client got %q; want taken over: %v", id, seen, got, taken)
		}
		if !taken && uuid.Validate(seen) != nil {
			t.Errorf("%q: made %q, no UUID", id, seen)
		}
		if !strings.Contains(log, "request_id="+seen) {
			t.Errorf("%q: the log does not name %q: %s", id, seen, log)
		}
	}
}

func TestOutsideARequestThereIsNoIDButALogger(t *testing.T) {
	if RequestID(t.Context()) != "" || Log(t.Context()) == nil {
		t.Error("an id from nowhere, or no logger")
	}
}

// B64
func TestAPanicIsA500ProblemWithoutInternals(t *testing.T) {
	w, log, _ := observed(get("/things/1"), func(http.ResponseWriter, *http.Request) { panic("secret of the house") })
	var problem struct {
		Code      string `json:"code"`
		RequestID string `json:"request_id"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	if w.Code != 500 || problem.Code != "internal" || problem.RequestID != w.Header().Get("X-Request-Id") || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !strings.Contains(log, "secret of the house") || !strings.Contains(log, "middleware_test.go") || !strings.Contains(log, "status=500") {
		t.Errorf("the log lacks panic, stack or status: %s", log)
	}
}

func TestAPanicAfterTheAnswerBeganWritesNoSecondOne(t *testing.T) {
	w, log, _ := observed(get("/things/1"), func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "half")
		panic("late")
	})
	if w.Code != 201 || w.Body.String() != "half" || !strings.Contains(log, "late") {
		t.Errorf("%d %q, log %s", w.Code, w.Body, log)
	}
}

// B64: net/http's own way to break off a response must reach net/http.
func TestTheAbortSentinelIsPassedOn(t *testing.T) {
	defer func() {
		if v := recover(); v != http.ErrAbortHandler {
			t.Errorf("recovered %v", v)
		}
	}()
	observed(get("/things/1"), func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	t.Error("the panic was swallowed")
}

func TestStrangersTextIsNoMetricLabel(t *testing.T) {
	for want, r := range map[string]*http.Request{
		`method="GET",route="/things/{id}",status="200"`:    get("/things/17"),
		`method="GET",route="none",status="404"`:            get("/secret-17"),
		`method="other",route="none",status="405"`:          httptest.NewRequest("BREW17", "/things/17", nil),
		`method="DELETE",route="/things/{id}",status="200"`: httptest.NewRequest(http.MethodDelete, "/things/17", nil),
	} {
		_, _, m := observed(r, func(http.ResponseWriter, *http.Request) {})
		if got := labels(t, m); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// labels returns those of the one request that was counted.
func labels(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "http_request_duration_seconds" {
			var b strings.Builder
			for _, metric := range f.GetMetric() {
				for i, l := range metric.GetLabel() {
					if i > 0 {
						b.WriteByte(',')
					}
					fmt.Fprintf(&b, "%s=%q", l.GetName(), l.GetValue())
				}
			}
			return b.String()
		}
	}
	t.Fatal("no request was counted")
	return ""
}

func TestTheDeadlineEndsTheContextAndTheHandlerAnswers(t *testing.T) {
	w := httptest.NewRecorder()
	Deadline(time.Millisecond)(Handle(func(r *http.Request) (Answer, error) {
		<-r.Context().Done()
		return Answer{}, r.Context().Err()
	})).ServeHTTP(w, get("/"))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), `"retryable":true`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestEveryAnswerCarriesTheSecurityHeaders(t *testing.T) {
	w := httptest.NewRecorder()
	SecurityHeaders(Handle(func(*http.Request) (Answer, error) { return Answer{}, errors.New("x") })).ServeHTTP(w, get("/"))
	for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestUnknownRoutesAndMethodsAreProblems(t *testing.T) {
	for code, h := range map[int]Handler{http.StatusNotFound: NoRoute, http.StatusMethodNotAllowed: NoMethod} {
		w := httptest.NewRecorder()
		Handle(h)(w, get("/"))
		if w.Code != code || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
}
