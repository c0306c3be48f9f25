package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/oncepay/internal/testenv"
)

// B56: the connection is cut behind the one statement that changes the stock, a hundred times, and behind COMMIT as often.
// Nothing sends the statement again by itself, and the request sent again changes the stock once.
func TestACutBehindAWriteAppliesItOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	const rounds = 100
	for i := range rounds {
		for command, c := range map[string]call{
			"UPDATE t_sku": moveStock(1, 1, key("update-%d", i)),
			"COMMIT":       moveStock(1, 1, key("commit-%d", i)),
		} {
			rule := s.instances[0].mysql.On(begins(command), 1, testenv.SwallowReply())
			wantUndecided(t, s.do(c))
			if rule.Hits() != 1 {
				t.Fatalf("the cut behind %s met %d commands", command, rule.Hits())
			}
			if r := s.do(on(i, c)); r.status != http.StatusCreated || r.replayed != fmt.Sprint(command == "COMMIT") {
				t.Fatalf("%s, sent again: %v", command, r)
			}
		}
	}
	if n := s.count("SELECT available FROM t_sku"); n != 1000+2*rounds {
		t.Errorf("%d units, want %d", n, 1000+2*rounds)
	}
	s.wantSound()
}

// begins matches statements that begin with text, white space aside.
func begins(text string) testenv.Match {
	return func(cmd string) bool { return strings.HasPrefix(strings.TrimSpace(cmd), text) }
}

// storm sends creates, and a cancel behind each second one that came through, from many clients that leave at random.
// It returns all the calls and what came back, index by index.
func (s *stack) storm(t *testing.T, n int) (calls []call, replies []reply) {
	t.Helper()
	const clients = 16
	calls, replies = make([]call, 2*n), make([]reply, 2*n)
	send := func(i int, c call) {
		// Up to 30 ms is when a request of this size is at work on an idle machine; some are given time enough.
		ctx, leave := context.WithTimeout(t.Context(), rand.N(30*time.Millisecond)+time.Duration(i%4/3)*time.Minute)
		defer leave()
		calls[i] = c
		c.ctx = ctx
		replies[i] = s.do(c)
	}
	var next atomic.Int64
	testenv.Together(clients, func(int) {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			send(i, create(i, int64(1001+i), 1, key("create"), ""))
			if orderNo := replies[i].field("order_no"); orderNo != "" && i%2 == 1 {
				send(n+i, s.step(int64(1001+i), orderNo, "cancel", key("cancel")))
			}
		}
	})
	return calls, replies
}

// calmed sends everything once more, now in peace, and asserts one result for each call: what was promised, or a first
// run. It returns how many orders and how many cancelled ones there are to be.
func (s *stack) calmed(t *testing.T, calls []call, replies []reply) (orders, cancelled int) {
	t.Helper()
	for i, c := range calls {
		if c.path == "" {
			continue // an order that did not come through in the storm was not cancelled
		}
		again := s.finally(t, c)
		if replies[i].err == nil && replies[i].status < http.StatusMultipleChoices {
			wantReplay(t, again, replies[i])
		}
		if strings.HasSuffix(c.path, "/cancel") {
			cancelled++
		} else {
			orders++
		}
	}
	return orders, cancelled
}

func (s *stack) wantOrders(orders, cancelled int) {
	s.t.Helper()
	s.wantRows(orders)
	if n := s.count("SELECT COUNT(*) FROM t_order WHERE status = 4"); n != cancelled {
		s.t.Errorf("%d orders are cancelled, want %d", n, cancelled)
	}
	if n := s.count("SELECT COUNT(*) FROM t_stock_movement WHERE kind = 'release'"); n != cancelled {
		s.t.Errorf("goods were given back %d times, want %d", n, cancelled)
	}
}

// B58: clients leave at random. Never stock without its order, never an order without its message.
func TestClientsThatLeaveTearNothingApart(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 100000)
	calls, replies := s.storm(t, 500)
	left, answered := 0, 0
	for i := range calls {
		switch {
		case calls[i].path == "":
		case replies[i].err != nil:
			left++
		default:
			answered++
		}
	}
	if left == 0 || answered == 0 {
		t.Errorf("%d clients left, %d got their answer; want some of each", left, answered)
	}
	s.untilIdle(t)
	s.wantSound() // before anything is sent again
	s.wantOrders(s.calmed(t, calls, replies))
	s.wantSound()
}

// B59: clients leave and connections are cut, both at random. Whoever gets an answer gets a result, or is told that it is
// not known and to ask again: never a duplicate, a conflict or "not found". No key keeps such an answer.
func TestTroubleIsNeverTakenForADecision(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 100000)
	var rules []*testenv.Rule
	for _, i := range s.instances {
		for _, fault := range []testenv.Action{testenv.CutBefore(), testenv.SwallowReply()} {
			rules = append(rules, i.mysql.On(func(string) bool { return rand.IntN(60) == 0 }, -1, fault))
		}
	}
	calls, replies := s.storm(t, 300)
	for _, rule := range rules {
		rule.Stop()
	}
	for i, r := range replies {
		if calls[i].path != "" && r.err == nil && r.status >= http.StatusMultipleChoices {
			wantUndecided(t, r)
		}
	}
	got := tally(replies)
	if got["201 "] == 0 || got["503 unavailable"] == 0 {
		t.Errorf("answers: %v; want results and trouble", got)
	}
	s.untilIdle(t)
	s.wantSound()
	if n := s.count("SELECT COUNT(*) FROM t_idempotency_key WHERE state = 0 OR status NOT IN (200, 201)"); n != 0 {
		t.Errorf("%d keys keep something else than a result", n)
	}
	s.wantOrders(s.calmed(t, calls, replies))
	s.wantSound()
}

// B61: texts that were ever used to break out of a quoted string are stored byte for byte, whatever character set and
// sql_mode the DSN asks for, or refused at the edge.
func TestTextsAreStoredByteForByte(t *testing.T) {
	for name, params := range map[string]string{"plain": "", "gbk": "?charset=gbk", "no backslash escapes": "?sql_mode=%27NO_BACKSLASH_ESCAPES%27"} {
		t.Run(name, func(t *testing.T) {
			s := newStackOn(t, testenv.Database(t)+params, testenv.RedisURL(t))
			s.sku(1, 1999, 1000)
			for i, text := range []string{
				`' OR 1=1 -- `, `\' OR 1=1 -- `, `\\`, `"`, "`", "a\x00b", "\x1a", "\r\n", "😀", "中文；'", "\ubf27", "\u00bf'", "%_", "/*!*/ ?",
			} {
				c := moveStock(1, 1, key("reason-%d", i))
				c.body = fmt.Sprintf(`{"delta":1,"reason":%s}`, quoteJSON(text))
				r := s.must(http.StatusCreated, c)
				var stored string
				if err := s.db.QueryRow("SELECT HEX(reason) FROM t_stock_movement WHERE cause = ?", r.field("cause")).Scan(&stored); err != nil {
					t.Fatal(err)
				}
				if want := strings.ToUpper(hex.EncodeToString([]byte(text))); stored != want || r.field("reason") != text {
					t.Errorf("%q is stored as %s and shown as %q, want %s", text, stored, r.field("reason"), want)
				}
				c = create(0, int64(1001+i), 1, key("id"), "")
				c.header = http.Header{"X-Request-Id": {strings.Map(sendable, text)}}
				id := s.must(http.StatusCreated, c).header.Get("X-Request-Id")
				if n := s.count("SELECT COUNT(*) FROM t_outbox WHERE request_id = ?", id); n != 1 || id == c.header.Get("X-Request-Id") {
					t.Errorf("%d messages carry the request id %q; want one, of our own making", n, id)
				}
			}
			for i, bytes := range []string{"\xbf\x27 OR 1=1", "\xbf\x5c\x27", "\x81'"} {
				c := moveStock(1, 1, key("bytes-%d", i))
				c.body = `{"delta":1,"reason":"` + bytes + `"}`
				wantProblem(t, s.do(c), http.StatusBadRequest, "body_invalid")
			}
			s.wantSound()
		})
	}
}

// quoteJSON writes every character as an escape, so that control characters can be sent too. Those here beyond 16 bits
// need two escapes, which UTF-16 calls surrogates, and are sent as they are.
func quoteJSON(text string) string {
	var b strings.Builder
	for _, c := range text {
		if c > 0xffff {
			b.WriteRune(c)
		} else {
			fmt.Fprintf(&b, `\u%04x`, c)
		}
	}
	return `"` + b.String() + `"`
}

// sendable drops what a client's own HTTP library refuses to send in a header.
func sendable(c rune) rune {
	if c < ' ' {
		return '~'
	}
	return c
}

// B62: an HTTP client that finds its kept-alive connection closed sends the request again by itself if that has an
// Idempotency-Key, and our key makes that one order. Without a key it must not; the cancel's own state makes it repeatable.
func TestAClientThatResendsByItselfMakesOneOrder(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	for name, c := range map[string]call{
		"with a key":    create(0, 1001, 1, key("K1"), ""),
		"without a key": s.step(1002, s.order(1002, 1), "cancel", ""),
	} {
		t.Run(name, func(t *testing.T) {
			url, arrivals := s.hangingUp(t)
			client := &http.Client{Transport: &http.Transport{}, Timeout: setupWait}
			defer client.CloseIdleConnections()
			status, err := s.sendBy(client, url, call{path: "/healthz", method: http.MethodGet}) // the connection to be reused
			if status != http.StatusOK || err != nil {
				t.Fatal(status, err)
			}
			status, err = s.sendBy(client, url, c)
			if resent := arrivals.Load() == 2; resent != (c.key != "") || resent != (err == nil && status == http.StatusCreated) {
				t.Errorf("%d arrivals, answer %d, %v", arrivals.Load(), status, err)
			}
			s.finally(t, c)
		})
	}
	s.wantOrders(2, 1)
	s.wantSound()
}

// hangingUp serves instance 0 so that the first POST is carried out, and the connection closed instead of an answer. It
// counts the POSTs.
func (s *stack) hangingUp(t *testing.T) (url string, arrivals *atomic.Int64) {
	t.Helper()
	handler, err := s.instances[0].svc.routes()
	if err != nil {
		t.Fatal(err)
	}
	arrivals = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || arrivals.Add(1) > 1 {
			handler.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(server.Close)
	return server.URL, arrivals
}

// sendBy sends c by another client, to another address.
func (s *stack) sendBy(client *http.Client, url string, c call) (int, error) {
	req, err := http.NewRequest(c.method, url+c.path, strings.NewReader(c.body))
	if err != nil {
		return 0, err
	}
	if c.method == "" {
		req.Method = http.MethodPost
	}
	req.Header.Set("Content-Type", "application/json")
	if c.as.UserID != 0 {
		req.Header.Set("Authorization", s.bearer(c.as))
	}
	if c.key != "" {
		req.Header.Set("Idempotency-Key", c.key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body) // else the connection is not reused
	return resp.StatusCode, err
}
