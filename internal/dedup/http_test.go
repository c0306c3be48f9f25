package dedup

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/web"
)

// operator sends requests to the handlers as user 7.
type operator struct {
	f      *fixture
	router chi.Router
	woken  atomic.Int32
}

func (f *fixture) operator() *operator {
	o := &operator{f: f, router: chi.NewRouter()}
	h := &HTTP{Service: f.Service, Wake: func() { o.woken.Add(1) }, Keys: &idemkey.Store{DB: f.DB, Now: f.clock, Lease: time.Minute, Retention: time.Hour, Metrics: f.Metrics}}
	o.router.Get("/v1/ops/dead-letters", web.Handle(h.List))
	o.router.Post("/v1/ops/dead-letters/{id}/replay", web.Handle(h.Replay))
	o.router.Post("/v1/ops/dead-letters/{id}/discard", web.Handle(h.Discard))
	return o
}

func (o *operator) send(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/v1/ops/dead-letters"+path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	o.router.ServeHTTP(w, r.WithContext(auth.With(context.Background(), auth.Caller{UserID: 7, Ops: true})))
	return w
}

// wantStatus decides about a dead letter and asserts the answer's code and the letter's status.
func (o *operator) wantStatus(path, body string, code int, status string) {
	o.f.t.Helper()
	w := o.send(http.MethodPost, path, body)
	var got struct{ Status string }
	if err := json.Unmarshal(w.Body.Bytes(), &got, json.MatchCaseInsensitiveNames(true)); w.Code != code || code == 200 && (err != nil || got.Status != status) {
		o.f.t.Errorf("%s %s: %d %s", path, body, w.Code, w.Body)
	}
}

// B111: a replay lets the message be tried again, once however often it is asked for; success resolves the exception.
func TestAReplayActsOnce(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	id := strconv.FormatInt(f.bury(m).ID, 10)
	o := f.operator()
	w := o.send(http.MethodGet, "", "")
	want := `{"data":[{"consumer":"points","created_at":"2026-05-01T12:00:00Z","id":` + id + `,"last_error":"broken","msg_id":"m1","order_no":"` + orderKey +
		`","status":"dead","topic":"order.paid","tries":12}],"next_cursor":""}`
	if got := jsonSorted(t, w.Body.Bytes()); w.Code != 200 || got != want {
		t.Errorf("%d %s\nwant %s", w.Code, got, want)
	}
	codes := make([]int, 10)
	testenv.Together(len(codes), func(i int) { codes[i] = o.send(http.MethodPost, "/"+id+"/replay", "").Code })
	for _, code := range codes {
		if code != 200 {
			t.Errorf("replays answered %v", codes)
			break
		}
	}
	f.wantCount(1, "SELECT COUNT(*) FROM t_audit WHERE actor_id = 7 AND action = 'dead_letter.replay' AND subject = ? AND detail = 'points:m1'", "dead_letter:"+id)
	f.wantCount(1, "SELECT COUNT(*) FROM t_exception WHERE status = 0")
	f.failing(nil)
	f.retry()
	f.wantOnce(m)
	f.wantCount(1, "SELECT COUNT(*) FROM t_exception WHERE subject = 'points:m1' AND status = 1 AND resolution LIKE 'replayed%'")
	o.wantStatus("/"+id+"/replay", "{}", 200, "done")
	o.wantStatus("/"+id+"/discard", "", 200, "done") // too late: it took effect
	f.advance(time.Hour)
	f.retry()
	f.wantOnce(m)
	f.wantCount(1, "SELECT COUNT(*) FROM t_audit")
}

// A replayed message has all its tries again; when they fail too it is a dead letter again.
func TestAReplayedMessageMayDieAgain(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	id := strconv.FormatInt(f.bury(m).ID, 10)
	o := f.operator()
	o.wantStatus("/"+id+"/replay", "", 200, "waiting")
	if n := o.woken.Load(); n != 1 {
		t.Errorf("the job was woken %d times, want 1", n)
	}
	for range MaxTries {
		f.retry()
		f.advance(firstPause << MaxTries)
	}
	f.wantTries("m1", 2*MaxTries)
	if r := f.record(f.Consumers[0], m); r.Status != Dead || r.Tries != MaxTries {
		t.Errorf("%+v", r)
	}
	f.wantCount(1, "SELECT COUNT(*) FROM t_exception WHERE status = 0")
}

// A discard is final, and says why and by whom; it is recorded once.
func TestADiscardIsFinal(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	id := strconv.FormatInt(f.bury(m).ID, 10)
	o := f.operator()
	o.wantStatus("/"+id+"/discard", `{"reason":"`+strings.Repeat("x", maxReason+1)+`"}`, 400, "")
	o.wantStatus("/"+id+"/discard", `{"why":"x"}`, 400, "")
	o.wantStatus("/"+id+"/replay", `{"reason":"x"}`, 400, "")
	f.wantCount(1, "SELECT COUNT(*) FROM t_message_dedup WHERE status = ?", Dead)
	o.wantStatus("/"+id+"/discard", `{"reason":"paid by hand 谁"}`, 200, "discarded")
	o.wantStatus("/"+id+"/discard", `{}`, 200, "discarded")
	o.wantStatus("/"+id+"/replay", ``, 200, "discarded")
	f.wantCount(1, "SELECT COUNT(*) FROM t_exception WHERE status = 1 AND resolved_by = 7 AND resolution = 'discarded: paid by hand 谁'")
	f.wantCount(1, "SELECT COUNT(*) FROM t_audit")
	f.wantCount(1, "SELECT COUNT(*) FROM t_audit WHERE actor_id = 7 AND action = 'dead_letter.discard' AND detail = 'points:m1: paid by hand 谁'")
	f.failing(nil)
	f.advance(time.Hour)
	f.retry()
	f.deliver(m)
	f.wantCount(0, "SELECT COUNT(*) FROM effect")
	if w := o.send(http.MethodGet, "", ""); strings.TrimSpace(w.Body.String()) != `{"data":[],"next_cursor":""}` {
		t.Errorf("still listed: %s", w.Body)
	}
}

func TestWhatIsNoDeadLetterIsNotFound(t *testing.T) {
	o := newFixture(t).operator()
	for _, action := range []string{"/replay", "/discard"} {
		w := o.send(http.MethodPost, "/99"+action, "")
		if w.Code != 404 || !strings.Contains(w.Body.String(), "dead_letter_not_found") {
			t.Errorf("%s: %d %s", action, w.Code, w.Body)
		}
		o.wantStatus("/x"+action, "", 400, "")
		o.wantStatus("/0"+action, "", 400, "")
	}
	if o.woken.Load() != 0 {
		t.Error("the job was woken for nothing")
	}
}

// Under one Idempotency-Key the first answer is given again.
func TestADecisionUnderAKeyIsAnsweredAgain(t *testing.T) {
	f := newFixture(t)
	id := strconv.FormatInt(f.bury(f.owe("m1")[0]).ID, 10)
	o := f.operator()
	const key = "0123456789-0123456789"
	first := o.send(http.MethodPost, "/"+id+"/replay", "", idemkey.Header, key)
	f.failing(nil)
	f.retry()
	again := o.send(http.MethodPost, "/"+id+"/replay", "", idemkey.Header, key)
	if first.Body.String() != again.Body.String() || again.Header().Get("Idempotent-Replayed") != "true" || !strings.Contains(again.Body.String(), "waiting") {
		t.Errorf("%s\nthen %v %s", first.Body, again.Header(), again.Body)
	}
	if w := o.send(http.MethodPost, "/"+id+"/discard", "", idemkey.Header, key); w.Code != 422 {
		t.Errorf("another request under the key: %d %s", w.Code, w.Body)
	}
}

// jsonSorted is a JSON text with its names in order.
func jsonSorted(t *testing.T, text []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What never was a dead letter is none: nothing is decided about a message that took effect, or that waits for its next try.
func TestOnlyDeadLettersCanBeDecided(t *testing.T) {
	f := newFixture(t)
	o := f.operator()
	list := f.owe("done", "waiting")
	f.deliver(list[0])
	f.failing(func(outbox.Stored) error { return errors.New("broken") })
	f.deliver(list[1])
	for _, m := range list {
		id := strconv.FormatInt(f.record(f.Consumers[0], m).ID, 10)
		for _, decision := range []string{"/replay", "/discard"} {
			o.wantStatus("/"+id+decision, "", http.StatusNotFound, "")
		}
	}
	f.wantCount(1, "SELECT COUNT(*) FROM t_message_dedup WHERE status = ? AND tries = 1", Waiting)
	f.wantCount(0, "SELECT COUNT(*) FROM t_audit")
}
