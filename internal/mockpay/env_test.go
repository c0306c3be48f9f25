package mockpay

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait; it is only ever used up by a failing test.
const patience = 20 * time.Second

const merchant = "m-mockpay"

func noon() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// channel is a mockpay that listens.
type channel struct {
	t      *testing.T
	s      *Server
	url    string
	client http.Client
	log    *bytes.Buffer // read it after close
}

func start(t *testing.T, change ...func(*Config)) *channel {
	t.Helper()
	// Each call has its own connection: on a used one that breaks, net/http sends a GET again by itself.
	c := &channel{t: t, log: &bytes.Buffer{}, client: http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	cfg := Config{
		Merchants: map[string][]string{merchant: {"whsec_dev"}, "m-mockpay2": {"whsec_dev2"}},
		Now:       noon, Log: slog.New(slog.NewTextHandler(c.log, nil)),
		RetrySchedule: []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond},
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	c.s, c.url = s, server.URL
	t.Cleanup(func() { c.close(); server.Close() })
	return c
}

func (c *channel) close() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.s.Close(ctx); err != nil && !strings.Contains(err.Error(), "file already closed") {
		c.t.Error(err)
	}
}

// idle waits until nothing is left to deliver.
func (c *channel) idle() {
	c.t.Helper()
	done := make(chan struct{})
	go func() { c.s.background.Wait(); close(done) }()
	within(c.t, done, "deliveries do not end")
}

// within takes the next value.
func within[T any](t *testing.T, from <-chan T, complaint string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal(complaint)
		panic("not reached")
	}
}

// send makes a call and returns the status and the body.
func (c *channel) send(method, path, body string) (int, []byte) {
	c.t.Helper()
	status, answer, err := c.try(context.Background(), method, path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	return status, answer
}

func (c *channel) try(ctx context.Context, method, path, body string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// want makes a call that must end with the status, and decodes the answer.
func want[T any](c *channel, status int, method, path, body string) (v T) {
	c.t.Helper()
	got, answer := c.send(method, path, body)
	if got != status {
		c.t.Fatalf("%s %s: %d %s; want %d", method, path, got, answer, status)
	}
	if err := json.Unmarshal(answer, &v); err != nil {
		c.t.Fatalf("%s %s: %v: %s", method, path, err, answer)
	}
	return v
}

// refused makes a call that must be refused with the status and code.
func (c *channel) refused(status int, code, method, path, body string) refusal {
	c.t.Helper()
	p := want[refusal](c, status, method, path, body)
	if p.Code != code || p.Status != status || p.Detail == "" || p.Type != "about:blank" {
		c.t.Fatalf("%s %s: %+v; want %d %s", method, path, p, status, code)
	}
	return p
}

func tradeBody(no, notifyURL string) string {
	return `{"merchant_id":"m-mockpay","out_trade_no":"` + no + `","amount":100,"currency":"CNY","notify_url":"` + notifyURL + `"}`
}

func refundBody(no, tradeNo, amount, notifyURL string) string {
	return `{"merchant_id":"m-mockpay","out_refund_no":"` + no + `","out_trade_no":"` + tradeNo + `","amount":` + amount + `,"notify_url":"` + notifyURL + `"}`
}

// paid opens a trade over 100 and pays it.
func (c *channel) paid(no, notifyURL string) Trade {
	c.t.Helper()
	want[Trade](c, 200, "POST", "/v1/trades", tradeBody(no, notifyURL))
	return want[Trade](c, 200, "POST", "/v1/trades/"+no+"/pay", "")
}

type effectList struct {
	Data     []Effect
	Arrivals []Arrivals
}

func (c *channel) effects() effectList {
	c.t.Helper()
	return want[effectList](c, 200, "GET", "/v1/effects", "")
}

// kinds is the effects' kinds in their order.
func (c *channel) kinds() string {
	c.t.Helper()
	var kinds []string
	for _, e := range c.effects().Data {
		kinds = append(kinds, e.Kind)
	}
	return strings.Join(kinds, " ")
}

func (c *channel) wantKinds(want string) {
	c.t.Helper()
	if got := c.kinds(); got != want {
		c.t.Errorf("effects %q, want %q", got, want)
	}
}

// parcel is one delivery of a notice.
type parcel struct {
	Notice
	signature string
	body      []byte
}

// merchantServer receives notices and answers the n-th (from 1) with what answer says.
func merchantServer(t *testing.T, answer func(n int) (int, string)) (string, <-chan parcel) {
	t.Helper()
	parcels := make(chan parcel, 100) // more than any test sends
	var mu sync.Mutex
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		n++
		p := parcel{signature: r.Header.Get(HeaderSignature)}
		var err error
		if p.body, err = io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		if err := json.Unmarshal(p.body, &p.Notice); err != nil || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s is no notice: %v", p.body, err)
		}
		status, body := answer(n)
		w.WriteHeader(status)
		io.WriteString(w, body)
		parcels <- p
	}))
	t.Cleanup(server.Close)
	return server.URL, parcels
}

func acknowledge(int) (int, string) { return 200, "success" }
