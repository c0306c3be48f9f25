package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/oncepay/internal/outbox"
)

const secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"

func now() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// endpoint is a receiver that makes one effect of each key, and fails as it is told.
type endpoint struct {
	*httptest.Server
	mu      sync.Mutex
	effects map[string]int // by key
	calls   int
	last    http.Header
	body    []byte
	answer  http.HandlerFunc // nil: 204
}

func newEndpoint(t *testing.T) *endpoint {
	e := &endpoint{effects: make(map[string]int)}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		e.calls++
		e.last, e.body = r.Header, body
		if key := r.Header.Get("Idempotency-Key"); e.effects[key] == 0 {
			e.effects[key]++
		}
		answer := e.answer
		e.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *endpoint) answers(with http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer, e.calls = with, 0
}

// seen returns how many calls there were since the last change of the answer, and what was sent with the last.
func (e *endpoint) seen() (calls int, header http.Header, body string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls, e.last, string(e.body)
}

func (e *endpoint) client() *Client {
	return &Client{URL: e.URL + "/hook?token=s3cret", Secret: secret, HTTP: e.Server.Client(), Now: now}
}

func message() outbox.Stored {
	return outbox.Stored{
		ID: "m1:o:0190:2", Topic: "order.paid", Key: "0190", Version: 2, Payload: []byte(`{"amount":9007199254740993,"title":"é😀"}`),
		CreatedAt: time.Date(2026, 5, 1, 11, 59, 59, 123456000, time.UTC),
	}
}

// The receiver finds the message, its key, and a signature that it can check with the secret it was given.
func TestACallIsAStandardWebhook(t *testing.T) {
	e := newEndpoint(t)
	if err := e.client().Call(t.Context(), message()); err != nil {
		t.Fatal(err)
	}
	want := `{"id":"m1:o:0190:2","type":"order.paid","created_at":"2026-05-01T11:59:59.123456Z","data":{"amount":9007199254740993,"title":"é😀"}}`
	_, header, body := e.seen()
	if body != want {
		t.Errorf("sent %s\nwant %s", body, want)
	}
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("m1:o:0190:2." + strconv.FormatInt(now().Unix(), 10) + "." + want))
	for name, value := range map[string]string{
		"Idempotency-Key": "m1:o:0190:2", "webhook-id": "m1:o:0190:2", "webhook-timestamp": strconv.FormatInt(now().Unix(), 10),
		"webhook-signature": "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)), "Content-Type": "application/json",
	} {
		if got := header.Get(name); got != value {
			t.Errorf("%s: %s, want %s", name, got, value)
		}
	}
}

// The example that Standard Webhooks' own libraries are tested with.
func TestTheSignatureIsTheStandards(t *testing.T) {
	got, err := sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want || err != nil {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

// A call whose answer was lost is made again under the same key, and is one effect.
func TestTheSameMessageIsOneEffect(t *testing.T) {
	e := newEndpoint(t)
	e.answers(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }) // worked, and then dropped
	if err := e.client().Call(t.Context(), message()); err == nil {
		t.Error("a call without an answer counts as a success")
	}
	dropped, _, _ := e.seen()
	e.answers(nil)
	if err := e.client().Call(t.Context(), message()); err != nil {
		t.Error(err)
	}
	if calls, _, _ := e.seen(); dropped < 1 || calls != 1 || len(e.effects) != 1 || e.effects[message().ID] != 1 {
		t.Errorf("%d and %d calls, effects %v; want one effect", dropped, calls, e.effects)
	}
}

func TestOnly2xxIsSuccess(t *testing.T) {
	e := newEndpoint(t)
	for _, status := range []int{200, 202, 299} {
		e.answers(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		if err := e.client().Call(t.Context(), message()); err != nil {
			t.Errorf("%d: %v", status, err)
		}
	}
	for _, status := range []int{300, 302, 307, 400, 401, 404, 409, 429, 500, 503} {
		e.answers(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere?token=s3cret", status) // sets Location whatever the status
		})
		err := e.client().Call(t.Context(), message())
		if err == nil || err.Error() != "notify: the endpoint answered "+strconv.Itoa(status) {
			t.Errorf("%d: %v", status, err)
		}
		if calls, _, _ := e.seen(); calls != 1 {
			t.Errorf("%d: %d calls; want no redirect followed", status, calls)
		}
	}
}

func TestAHangingEndpointEndsWithTheDeadline(t *testing.T) {
	e := newEndpoint(t)
	hanging := make(chan struct{})
	e.answers(func(_ http.ResponseWriter, r *http.Request) { close(hanging); <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-hanging; cancel() }()
	if err := e.client().Call(ctx, message()); err == nil {
		t.Error("no error")
	}
	var deadline time.Time
	client := e.client()
	client.HTTP = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		deadline, _ = r.Context().Deadline()
		return &http.Response{StatusCode: 200, Body: io.NopCloser(bytes.NewReader(nil))}, nil
	})}
	before := time.Now()
	if err := client.Call(t.Context(), message()); err != nil {
		t.Fatal(err)
	}
	if left := deadline.Sub(before); left < Timeout || left > Timeout+time.Second {
		t.Errorf("a call may take %s, want %s", left, Timeout)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Errors stand in rows and logs: neither the secret nor the URL may.
func TestErrorsShowNoSecret(t *testing.T) {
	e := newEndpoint(t)
	e.Close()
	for name, tc := range map[string]struct {
		change func(*Client)
		says   string
	}{
		"down":            {func(*Client) {}, "connection refused"},
		"malformed URL":   {func(c *Client) { c.URL = "http://[s3cret" }, "missing ']'"},
		"no such scheme":  {func(c *Client) { c.URL = "ftp://host/s3cret" }, "unsupported protocol scheme"},
		"no base64":       {func(c *Client) { c.Secret = "whsec_s3cret!" }, "the secret is not"},
		"no prefix":       {func(c *Client) { c.Secret = "s3cret" }, "the secret is not"},
		"nothing to sign": {func(c *Client) { c.Secret = "whsec_" }, "the secret is not"},
	} {
		client := e.client()
		tc.change(client)
		err := client.Call(t.Context(), message())
		if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), strings.TrimPrefix(secret, "whsec_")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
