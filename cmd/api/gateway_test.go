package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/oncepay/internal/testenv"
)

// gateway does what nginx does with proxy_next_upstream ... timeout non_idempotent: a request that one instance does not
// answer in time is sent to the next, POST or not.
type gateway struct {
	t         *testing.T
	upstreams []*instance
	patience  time.Duration
	rebuild   bool // it makes new headers for each try, as gateways do that call a library instead of passing through
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		g.t.Errorf("gateway: %v", err)
		return
	}
	for _, upstream := range g.upstreams[:len(g.upstreams)-1] {
		ctx, cancel := context.WithTimeout(r.Context(), g.patience)
		passed := g.pass(ctx, w, r, upstream, body)
		cancel()
		if passed {
			return
		}
	}
	if !g.pass(r.Context(), w, r, g.upstreams[len(g.upstreams)-1], body) {
		w.WriteHeader(http.StatusGatewayTimeout)
	}
}

// pass sends the request on and its answer back. False: there was none.
func (g *gateway) pass(ctx context.Context, w http.ResponseWriter, r *http.Request, to *instance, body []byte) bool {
	req, err := http.NewRequestWithContext(ctx, r.Method, to.url+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		g.t.Errorf("gateway: %v", err)
		return false
	}
	req.Header = r.Header.Clone()
	if g.rebuild {
		req.Header = http.Header{
			"Authorization": r.Header["Authorization"], "Content-Type": r.Header["Content-Type"], "Idempotency-Key": {uuid.NewString()},
		}
	}
	resp, err := testClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // the client may be gone
	return true
}

// through sends c once to a gateway whose first upstream is stuck at a command until the second has the request too.
func (s *stack) through(t *testing.T, rebuild bool, at testenv.Match, c call) reply {
	t.Helper()
	first, second := s.instances[0], s.instances[1]
	server := httptest.NewServer(&gateway{t: t, upstreams: []*instance{first, second}, patience: 100 * time.Millisecond, rebuild: rebuild})
	defer server.Close()
	gate := testenv.NewGate(t)
	stuck := first.mysql.On(at, 1, testenv.Hold(gate))
	arrived := second.redis.On(testenv.Contains("oncepay:lock:"), 1, testenv.Action{})
	outside := &stack{t: t, instances: []*instance{{url: server.URL}}, tokens: s.tokens}
	done := outside.background(c)
	arrived.Wait(t, 1)
	gate.Open()
	if stuck.Hits() != 1 {
		t.Error("the first instance was not stuck")
	}
	return <-done
}

// B67: one call of a client, two instances at work on it, one order, and that is what the client ends with.
func TestAGatewaySendsOnePostTwice(t *testing.T) {
	for _, at := range []string{"INSERT INTO t_outbox", "COMMIT"} {
		t.Run(at, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 1999, 1000)
			s.activity("sale")
			calls := []call{
				create(0, 1001, 1, key("K1"), ""),
				create(0, 1001, 1, key("K2"), s.token(1001)),
				inActivity(create(0, 1001, 1, key("K3"), ""), "sale"),
			}
			for i, c := range calls {
				r := s.through(t, false, testenv.Contains(at), c)
				if r.status != http.StatusCreated {
					t.Errorf("%s: the client ends with %v; want its order", c.key, r)
				}
				wantReplay(t, s.do(c), r)
				s.wantRows(i + 1)
			}
			s.wantSound()
		})
	}
}

// B67, S0 §5.2 and §8: a gateway must pass headers through. One that makes a new key for each try and drops the token takes
// the upper guards' knowledge away. In an activity the business key still stops the second order; without one there is
// nothing left that says "the same", and two purchases are what was asked for.
func TestAGatewayThatRebuildsHeaders(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	s.activity("sale")
	sale := inActivity(create(0, 1001, 1, key("K1"), ""), "sale")
	r := s.through(t, true, testenv.Prefix("COMMIT"), sale)
	if r.status != http.StatusCreated || !strings.Contains(string(r.body), `"activity_id":"sale"`) {
		t.Errorf("in an activity: %v; want the order", r)
	}
	s.wantRows(1)
	wantOrder(t, s.do(sale), r.field("order_no"))

	if r := s.through(t, true, testenv.Prefix("COMMIT"), create(0, 1001, 1, key("K2"), s.token(1001))); r.status != http.StatusCreated {
		t.Errorf("outside any activity: %v", r)
	}
	s.wantRows(3)
	s.wantSound()
}
