package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/recon"
	"example.com/oncepay/internal/testenv"
)

// stack is what most tests of the whole service need: two instances on one database and one Redis, each behind a pair of
// fault proxies of its own, with a clock the test can move.
type stack struct {
	t         *testing.T
	db        *mysqldb.DB    // the test's own look at the rows, past all proxies
	redisURL  string         // likewise
	channel   *channelServer // the fake channel both instances use
	instances []*instance
	tokens    map[auth.Caller]string
	mu        sync.Mutex
}

// instance is one api process as far as clients can tell: its own pools, guards and clock.
type instance struct {
	url     string
	svc     *service
	clock   *clock
	mysql   *testenv.Proxy
	redis   *testenv.Proxy
	logs    *lockedBuffer
	metrics *metrics.Metrics
}

// clock is a world's time that a test can move.
type clock struct {
	mu      sync.Mutex
	offset  time.Duration
	stopped time.Time // zero: it runs
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped.IsZero() {
		return c.stopped.UTC().Truncate(time.Microsecond)
	}
	return time.Now().Add(c.offset).UTC().Truncate(time.Microsecond)
}

// stop lets it be one moment from now on.
func (c *clock) stop(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newStack starts two instances on a new database. env overrides configuration variables, e.g. "LOCK_TTL=1s".
func newStack(t *testing.T, env ...string) *stack {
	t.Helper()
	return newStackOn(t, testenv.Database(t), testenv.RedisURL(t), env...)
}

func newStackOn(t *testing.T, dsn, redisURL string, env ...string) *stack {
	t.Helper()
	s := &stack{t: t, db: testenv.OpenDB(t, dsn), redisURL: redisURL, tokens: make(map[auth.Caller]string)}
	s.channel = newChannelServer(t)
	env = append([]string{"MOCKPAY_URL=" + s.channel.url}, env...)
	for range 2 {
		s.instances = append(s.instances, newInstance(t, dsn, redisURL, env...))
	}
	return s
}

func newInstance(t *testing.T, dsn, redisURL string, env ...string) *instance {
	t.Helper()
	i := &instance{clock: &clock{}, logs: &lockedBuffer{}, metrics: metrics.New()}
	i.mysql, dsn = testenv.BehindMySQLProxy(t, dsn)
	i.redis, redisURL = testenv.BehindRedisProxy(t, redisURL)
	vars := map[string]string{"MYSQL_DSN": dsn, "REDIS_URL": redisURL}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		vars[name] = value
	}
	cfg, err := config.Load(func(name string) string { return vars[name] })
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(i.logs, nil))
	stores, err := openStores(t.Context(), cfg, i.metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(nil)
	i.url = "http://" + server.Listener.Addr().String()
	i.svc, err = newService(cfg, stores, i.metrics, world{now: i.clock.now, newOrderNo: newOrderNo}, log, i.url)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.svc.messages.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	handler, err := i.svc.routes()
	if err != nil {
		t.Fatal(err)
	}
	server.Config.Handler = handler
	server.Start()
	t.Cleanup(func() {
		if err := i.svc.closeMockpay(context.Background()); err != nil {
			t.Errorf("close mockpay: %v", err)
		}
		server.Close()
		if err := i.svc.broker.Close(); err != nil {
			t.Errorf("close broker: %v", err)
		}
		if err := stores.close(); err != nil {
			t.Errorf("close stores: %v", err)
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", i.url, tail(i.logs.String(), 6000))
		}
	})
	return i
}

func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

// bearer returns an Authorization header for a caller.
func (s *stack) bearer(c auth.Caller) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tokens[c] == "" {
		signed, err := auth.Sign(config.DevJWTSecret, c, time.Now().Add(1000*time.Hour))
		if err != nil {
			s.t.Fatal(err)
		}
		s.tokens[c] = "Bearer " + signed
	}
	return s.tokens[c]
}

var operator = auth.Caller{UserID: 1, Ops: true}

// call describes one request.
type call struct {
	on     int // instance
	as     auth.Caller
	method string // POST when there is a body or a key, GET otherwise, unless set
	path   string
	body   string
	key    string
	token  string
	header http.Header // more headers
	ctx    context.Context
}

// reply is what came back. err is set when no answer came.
type reply struct {
	status   int
	header   http.Header
	body     []byte
	replayed string
	err      error
	took     time.Duration
}

// field reads a member of the JSON body, e.g. "order_no" or "code".
func (r reply) field(name string) string {
	var m map[string]any
	if json.Unmarshal(r.body, &m) != nil || m[name] == nil {
		return ""
	}
	return fmt.Sprint(m[name])
}

func (r reply) String() string {
	return fmt.Sprintf("%d replayed=%q err=%v %s", r.status, r.replayed, r.err, r.body)
}

// do sends a request and returns what came back.
func (s *stack) do(c call) reply {
	if c.method == "" {
		c.method = http.MethodGet
		if c.body != "" || c.key != "" {
			c.method = http.MethodPost
		}
	}
	if c.ctx == nil {
		c.ctx = context.Background()
	}
	req, err := http.NewRequestWithContext(c.ctx, c.method, s.instances[c.on%len(s.instances)].url+c.path, strings.NewReader(c.body))
	if err != nil {
		s.t.Error(err)
		return reply{err: err}
	}
	if c.as.UserID != 0 {
		req.Header.Set("Authorization", s.bearer(c.as))
	}
	if c.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Idempotency-Key", c.key)
	}
	if c.token != "" {
		req.Header.Set("X-Submit-Token", c.token)
	}
	for name, values := range c.header {
		req.Header[name] = values
	}
	return exchange(req)
}

// exchange sends a request and reads the whole answer.
func exchange(req *http.Request) reply {
	start := time.Now()
	resp, err := testClient.Do(req)
	if err != nil {
		return reply{err: err, took: time.Since(start)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, body, resp.Header.Get("Idempotent-Replayed"), err, time.Since(start)}
}

// setupWait bounds waits for something that happens soon, on a loaded machine.
const setupWait = 20 * time.Second

// testClient keeps enough idle connections that a hundred callers at once do not spend the test on handshakes.
var testClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}, Timeout: time.Minute}

// must is do for the steps that set a test up: any other status ends it.
func (s *stack) must(status int, c call) reply {
	s.t.Helper()
	r := s.do(c)
	if r.err != nil || r.status != status {
		s.t.Fatalf("%s %s: %v; want %d", c.method, c.path, r, status)
	}
	return r
}

// sku makes goods to buy.
func (s *stack) sku(id, price, stock int64) {
	s.t.Helper()
	s.must(http.StatusCreated, call{as: operator, method: http.MethodPut, path: fmt.Sprintf("/v1/ops/skus/%d", id),
		body: fmt.Sprintf(`{"title":"goods %d","price":%d,"currency":"CNY","stock":%d}`, id, price, stock)})
}

// activity makes a running activity.
func (s *stack) activity(id string) {
	s.t.Helper()
	s.must(http.StatusCreated, call{as: operator, method: http.MethodPut, path: "/v1/ops/activities/" + id,
		body: `{"title":"sale","starts_at":"2000-01-01T00:00:00Z","ends_at":"2999-01-01T00:00:00Z"}`})
}

// token fetches a submit token.
func (s *stack) token(user int64) string {
	s.t.Helper()
	return s.must(http.StatusCreated, call{as: buyer(user), path: "/v1/tokens", body: `{"scene":"order.create"}`}).field("token")
}

func buyer(id int64) auth.Caller { return auth.Caller{UserID: id} }

// create describes a purchase of one unit of a SKU by a user.
func create(on int, user, sku int64, key, token string) call {
	return call{on: on, as: buyer(user), path: "/v1/orders", body: fmt.Sprintf(`{"sku_id":%d,"quantity":1}`, sku), key: key, token: token}
}

// key makes a well-formed Idempotency-Key that reads well in failures.
func key(format string, args ...any) string {
	return fmt.Sprintf("test-key-%012d-", 0) + fmt.Sprintf(format, args...)
}

// count returns a number from the database.
func (s *stack) count(query string, args ...any) int {
	s.t.Helper()
	var n int
	if err := s.db.QueryRow(query, args...).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// wantRows asserts how many rows the tables of order creation have: orders, reservations and created-messages.
func (s *stack) wantRows(orders int) {
	s.t.Helper()
	got := [3]int{
		s.count("SELECT COUNT(*) FROM t_order"),
		s.count("SELECT COUNT(*) FROM t_stock_movement WHERE kind = 'reserve'"),
		s.count("SELECT COUNT(*) FROM t_outbox WHERE topic = 'order.created'"),
	}
	if got != [3]int{orders, orders, orders} {
		s.t.Errorf("orders, reservations, messages = %v; want %d of each", got, orders)
	}
}

// consume hands the messages that are due to their consumers, past broker and proxies, as an instance's jobs would.
func (s *stack) consume() {
	s.t.Helper()
	if s.instances[0].svc == nil {
		return // a program of its own, whose consumers are at work
	}
	messages := *s.instances[0].svc.messages
	messages.DB, messages.Exceptions = s.db, &exception.Store{DB: s.db, Metrics: s.instances[0].metrics, Now: messages.Now}
	if err := errors.Join(messages.Rescue(context.Background()), messages.Retry(context.Background())); err != nil {
		s.t.Errorf("consume: %v", err)
	}
}

// wantSound asserts that no invariant is violated. Every test of the whole service ends with it.
func (s *stack) wantSound() {
	s.t.Helper()
	s.consume()
	checker := &recon.Checker{DB: s.db, Redis: testenv.OpenRedis(s.t, s.redisURL), Now: s.instances[0].clock.now}
	violations, err := checker.Check(context.Background())
	if err != nil {
		s.t.Fatalf("invariants: %v", err)
	}
	for _, v := range violations {
		s.t.Errorf("invariant violated: %+v", v)
	}
}

// hits sums a guard's counter over both instances.
func (s *stack) hits(guard, operation, outcome string) int {
	total := 0
	for _, i := range s.instances {
		total += int(testutil.ToFloat64(i.metrics.GuardHits(guard, operation, outcome)))
	}
	return total
}

// all runs a request n times at once, spread over the instances, and returns what came back in order.
func (s *stack) all(n int, c func(i int) call) []reply {
	replies := make([]reply, n)
	testenv.Together(n, func(i int) { replies[i] = s.do(c(i)) })
	return replies
}

// tally counts replies by status and code, for failure messages.
func tally(replies []reply) map[string]int {
	counts := make(map[string]int)
	for _, r := range replies {
		counts[fmt.Sprintf("%d %s", r.status, r.field("code"))]++
	}
	return counts
}

// distinct returns the different values of a field among the successes.
func distinct(replies []reply, field string) map[string]int {
	values := make(map[string]int)
	for _, r := range replies {
		if r.status == http.StatusCreated || r.status == http.StatusOK {
			values[r.field(field)]++
		}
	}
	return values
}
