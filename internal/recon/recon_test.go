package recon

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/inventory"
	"example.com/oncepay/internal/lock"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/token"
	"example.com/oncepay/internal/web"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func now() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

func newChecker(t *testing.T) *Checker {
	t.Helper()
	return &Checker{DB: testenv.OpenDB(t, testenv.Database(t)), Redis: testenv.OpenRedis(t, testenv.RedisURL(t)), Now: now}
}

// check returns the violated invariants, each once.
func check(t *testing.T, c *Checker) (names []string, violations []Violation) {
	t.Helper()
	violations, err := c.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range violations {
		if v.Subject == "" || v.Detail == "" {
			t.Errorf("a violation that says nothing: %+v", v)
		}
		names = append(names, v.Invariant)
	}
	slices.Sort(names)
	return slices.Compact(names), violations
}

// busy fills the database with orders on every way through the state table that there is so far, and with keys, locks and
// tokens. It returns the number of an order in each status that was reached.
func busy(t *testing.T, c *Checker) map[order.Status]string {
	t.Helper()
	ctx, m := t.Context(), metrics.New()
	goods := inventory.Service{DB: c.DB, Now: now}
	for id, price := range map[int64]money.Amount{1: 100, 2: 0} {
		if _, _, err := goods.Put(ctx, id, inventory.Definition{Title: "goods", Price: price, Currency: "CNY", Stock: 50}); err != nil {
			t.Fatal(err)
		}
	}
	keys := &idemkey.Store{DB: c.DB, Now: now, Lease: time.Minute, Retention: time.Hour, Metrics: m}
	numbers := 0
	s := &order.Service{
		DB: c.DB, Keys: keys, Tokens: &token.Store{Disabled: true}, Locks: lock.None{}, Metrics: m, Now: now, PayTimeout: time.Hour,
		Exceptions: &exception.Store{DB: c.DB, Metrics: m, Now: now},
		NewOrderNo: func() (string, error) { numbers++; return fmt.Sprintf("%032d", numbers), nil },
	}
	w := &world{t: t, db: c.DB, orders: s, payments: newPayments(c, s, m)}
	reached := make(map[order.Status]string)
	for status, way := range map[order.Status][]func(no string){
		order.Init: {w.wrongMoney, w.payAgain}, order.Paid: {w.pay, w.refundPart, w.doubleMoney}, order.Shipped: {w.pay, w.ship, w.doubleMoneyStays},
		order.Finished: {w.pay, w.ship, w.finish}, order.Cancelled: {w.cancel, w.lateMoney}, order.Refunding: {w.pay, w.refundAll},
		order.Refunded: {w.pay, w.refundAll, w.refunded},
	} {
		for sku := int64(1); sku <= 2; sku++ {
			if sku == 2 && status != order.Init {
				continue // an order over nothing has paid itself
			}
			a, err := s.Create(ctx, order.CreateInput{UserID: 1001, SKUID: sku, Quantity: 3, Key: idemkey.Key{
				Caller: 1001, Value: fmt.Sprintf("key-of-order-%s-%d", status, sku), Operation: "order.create", Fingerprint: "v1:x",
			}})
			if err != nil || a.Status != 201 {
				t.Fatalf("%d %s, %v", a.Status, a.Body, err)
			}
			no := strings.TrimPrefix(a.Location, "/v1/orders/")
			if sku != 1 {
				continue
			}
			for _, step := range way {
				step(no)
			}
			reached[status] = no
		}
	}
	keysThatExpire(t, c)
	exec(t, c, insertKey, 1, now().Add(time.Microsecond)) // in progress, within its lease
	grants(t, c, s)
	return reached
}

func keysThatExpire(t *testing.T, c *Checker) {
	t.Helper()
	for _, key := range []string{"oncepay:lock:{a}", "oncepay:token:{b}"} {
		if err := c.Redis.Set(t.Context(), key, "x", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// copied is a checker over a copy of another's data, which is much faster made than the data themselves.
func copied(t *testing.T, from *Checker) *Checker {
	t.Helper()
	c := newChecker(t)
	var source string
	if err := from.DB.QueryRowContext(t.Context(), "SELECT DATABASE()").Scan(&source); err != nil {
		t.Fatal(err)
	}
	tables, err := mysqldb.Collect(func(row mysqldb.Scanner) (name string, err error) { return name, row.Scan(&name) })(
		c.DB.QueryContext(t.Context(), "SHOW TABLES LIKE 't\\_%'"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("tables %v, %v", tables, err)
	}
	for _, table := range tables {
		exec(t, c, "INSERT INTO "+table+" SELECT * FROM "+source+"."+table)
	}
	keysThatExpire(t, c)
	return c
}

const insertKey = `INSERT INTO t_idempotency_key (caller_id, idem_key, operation, fingerprint, state, owner, lease_until, create_time, expires_at)
	VALUES (?, 'key-in-progress', 'x', 'x', 0, 'x', ?, NOW(), NOW())`

func exec(t *testing.T, c *Checker, query string, args ...any) {
	t.Helper()
	if _, err := c.DB.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func TestSoundDataViolatesNothing(t *testing.T) {
	c := newChecker(t)
	for _, stage := range []string{"empty", "busy"} {
		if _, violations := check(t, c); len(violations) != 0 {
			t.Errorf("%s: %+v", stage, violations)
		}
		if stage == "empty" {
			busy(t, c)
		}
	}
}

// fault plants a violation. o has the number of an order in each status.
type fault = func(t *testing.T, c *Checker, o map[order.Status]string)

// faults plants one violation of each invariant, and of nothing else.
func faults() map[string]fault {
	type orders = map[order.Status]string
	one := func(query string, of ...order.Status) fault {
		return func(t *testing.T, c *Checker, o orders) {
			var args []any
			for _, s := range of {
				args = append(args, o[s])
			}
			exec(t, c, query, args...)
		}
	}
	all := map[string]fault{
		"one_order_per_biz_token": func(t *testing.T, c *Checker, o orders) {
			exec(t, c, "ALTER TABLE t_order DROP KEY uk_biz_token")
			exec(t, c, "UPDATE t_order SET biz_token = 'twice' WHERE order_no IN (?, ?)", o[order.Paid], o[order.Init])
		},
		"stock_adds_up":                     one("UPDATE t_sku SET initial = initial + 1 WHERE sku_id = 1"),
		"stock_is_the_sum_of_its_movements": one("UPDATE t_sku SET available = available - 1, sold = sold + 1 WHERE sku_id = 1"),
		"every_order_holds_its_goods_once":  one("UPDATE t_stock_movement SET kind = 'adjust' WHERE kind = 'reserve' AND cause = CONCAT('o1:', ?)", order.Init),
		"goods_follow_the_order":            one("UPDATE t_stock_movement SET kind = 'adjust' WHERE kind = 'confirm' AND cause = CONCAT('o1:', ?)", order.Paid),
		"version_counts_the_history":        one("UPDATE t_order SET version = version + 1 WHERE order_no = ?", order.Shipped),
		"status_is_where_the_history_ends":  one("UPDATE t_order SET status = 2 WHERE order_no = ?", order.Paid),
		"history_is_connected":              one("UPDATE t_order_history SET from_status = 5 WHERE to_status = 2 AND order_no = ?", order.Shipped),
		"every_move_owes_one_message":       one("DELETE FROM t_outbox WHERE version = 2 AND partition_key = ?", order.Cancelled),
		"every_message_was_owed": one(`INSERT INTO t_outbox (msg_id, topic, partition_key, version, payload, create_time)
			VALUES ('planted', 'order.paid', ?, 9, '{}', NOW())`, order.Paid),
		"no_key_in_progress_past_its_lease": func(t *testing.T, c *Checker, _ orders) { exec(t, c, insertKey, 2, now()) },
		"moves_are_in_the_state_table": func(t *testing.T, c *Checker, o orders) { // a finished order is on its way after all
			appendMove(t, c, o[order.Finished], order.Finished, order.Shipped)
		},
		"redis_keys_expire": func(t *testing.T, c *Checker, _ orders) {
			if err := c.Redis.Persist(t.Context(), "oncepay:lock:{a}").Err(); err != nil {
				t.Fatal(err)
			}
		},
	}
	maps.Copy(all, moneyFaults(one))
	maps.Copy(all, grantFaults(one))
	return all
}

// appendMove makes an order take a step, whether the state table has it or not, with all that a step owes.
func appendMove(t *testing.T, c *Checker, no string, from, to order.Status) {
	t.Helper()
	exec(t, c, "UPDATE t_order SET status = ?, version = version + 1 WHERE order_no = ?", to, no)
	exec(t, c, `INSERT INTO t_order_history (order_no, version, from_status, to_status, cause, actor, create_time)
		SELECT order_no, version, ?, ?, 'planted', 'x', NOW() FROM t_order WHERE order_no = ?`, from, to, no)
	exec(t, c, `INSERT INTO t_outbox (msg_id, topic, partition_key, version, payload, create_time)
		SELECT 'planted', 'order.planted', order_no, version, '{}', NOW() FROM t_order WHERE order_no = ?`, no)
}

func TestEachPlantedFaultIsNamedAndNoOther(t *testing.T) {
	for _, inv := range (&Checker{Now: now}).invariants() {
		if faults()[inv.name] == nil {
			t.Errorf("no fault is planted for %s", inv.name)
		}
	}
	sound := newChecker(t)
	reached := busy(t, sound)
	for name, plant := range faults() {
		t.Run(name, func(t *testing.T) {
			c := copied(t, sound)
			plant(t, c, reached)
			if names, violations := check(t, c); !slices.Equal(names, []string{name}) {
				t.Errorf("reported %+v", violations)
			}
		})
	}
}

// further is one more way to break a rule: a statement about an order in some status.
type further struct {
	invariant, query string
	of               order.Status
}

// wantNamed plants each fault and asserts that its invariant is reported, whatever else is.
func wantNamed(t *testing.T, faults map[string]further) {
	t.Helper()
	sound := newChecker(t)
	reached := busy(t, sound)
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			c := copied(t, sound)
			exec(t, c, f.query, reached[f.of])
			if names, violations := check(t, c); !slices.Contains(names, f.invariant) {
				t.Errorf("reported %+v", violations)
			}
		})
	}
}

// More ways to break the same rules.
func TestFurtherFaultsAreNamed(t *testing.T) {
	wantNamed(t, map[string]further{
		"reserved twice": {"every_order_holds_its_goods_once", `INSERT INTO t_stock_movement (cause, kind, sku_id, available, reserved, sold, create_time)
			VALUES (CONCAT('o1:', ?), 'reserve', 9, 0, 0, 0, NOW())`, order.Paid},
		"released twice": {"goods_follow_the_order", `INSERT INTO t_stock_movement (cause, kind, sku_id, available, reserved, sold, create_time)
			VALUES (CONCAT('o1:', ?), 'release', 9, 0, 0, 0, NOW())`, order.Cancelled},
		"sold and released": {"goods_follow_the_order", `INSERT INTO t_stock_movement (cause, kind, sku_id, available, reserved, sold, create_time)
			VALUES (CONCAT('o1:', ?), 'release', 9, 0, 0, 0, NOW())`, order.Paid},
		"no history":     {"version_counts_the_history", "DELETE FROM t_order_history WHERE order_no = ?", order.Init},
		"history begins": {"moves_are_in_the_state_table", "UPDATE t_order_history SET to_status = 1 WHERE version = 1 AND order_no = ?", order.Init},
		"two messages": {"every_move_owes_one_message", `INSERT INTO t_outbox (msg_id, topic, partition_key, version, payload, create_time)
			VALUES ('planted', 'order.paid', ?, 2, '{}', NOW())`, order.Paid},
	})
}

func TestALongListIsCut(t *testing.T) {
	c := newChecker(t)
	for i := range maxRows + 5 {
		exec(t, c, insertKey, i, now())
	}
	if _, violations := check(t, c); len(violations) != maxRows {
		t.Errorf("%d violations reported, want %d", len(violations), maxRows)
	}
}

func TestNoAnswerIsNotAGoodAnswer(t *testing.T) {
	c := newChecker(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if v, err := c.Check(ctx); err == nil {
		t.Errorf("reports %v", v)
	}
	exec(t, c, "DROP TABLE t_outbox")
	if v, err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "every_message_reaches_its_consumers") {
		t.Errorf("reports %v, %v", v, err)
	}
	r := httptest.NewRequest("GET", "/v1/ops/invariants", nil)
	if a, err := c.HTTP(r); err == nil {
		t.Errorf("answers %s", a.Body)
	}
}

func TestTheAnswerListsTheViolations(t *testing.T) {
	c := newChecker(t)
	ask := func() string {
		a, err := c.HTTP(httptest.NewRequest("GET", "/v1/ops/invariants", nil))
		if err != nil || a.Status != 200 {
			t.Fatalf("%d, %v", a.Status, err)
		}
		return string(a.Body)
	}
	if got := ask(); got != `{"violations":[]}`+"\n" {
		t.Errorf("empty: %s", got)
	}
	exec(t, c, insertKey, 1, now())
	want := `{"violations":[{"invariant":"no_key_in_progress_past_its_lease","subject":"1 key-in-progress","detail":"lease ended at 2026-05-01 12:00:00.000000"}]}` + "\n"
	if got := ask(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// With Redis down the rest is still checked, and the log says what was not.
func TestRedisDownIsNoViolation(t *testing.T) {
	c := newChecker(t)
	proxy, address := testenv.BehindRedisProxy(t, testenv.RedisURL(t))
	c.Redis = testenv.OpenRedis(t, address)
	proxy.Down()
	var log strings.Builder
	ctx := web.WithRequestID(t.Context(), "req-1", slog.New(slog.NewTextHandler(&log, nil)))
	if v, err := c.Check(ctx); err != nil || len(v) != 0 || !strings.Contains(log.String(), "cannot look for Redis keys") {
		t.Errorf("%v, %v, log %s", v, err, log.String())
	}
}

// The masters of a cluster are scanned at the same time; every one's keys are reported.
func TestEveryMasterOfAClusterIsScanned(t *testing.T) {
	sockets := make(map[string]string)
	var slots []redis.ClusterSlot
	const masters, keys = 3, 20
	for i := range masters {
		address := testenv.PrivateRedis(t).URL()
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("node-%d:6379", i)
		sockets[name] = u.Path
		slots = append(slots, redis.ClusterSlot{Start: i * 5461, End: (i+1)*5461 - 1, Nodes: []redis.ClusterNode{{Addr: name}}})
		node := testenv.OpenRedis(t, address)
		for k := range keys {
			for key, ttl := range map[string]time.Duration{
				fmt.Sprintf("oncepay:lock:{%d-%d}", i, k): 0, fmt.Sprintf("oncepay:token:{%d-%d}", i, k): 0,
				fmt.Sprintf("oncepay:lock:{good-%d-%d}", i, k): time.Hour, fmt.Sprintf("other:%d", k): 0,
			} {
				if err := node.Set(t.Context(), key, "x", ttl).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return slots, nil },
		Dialer:       func(_ context.Context, _, addr string) (net.Conn, error) { return net.Dial("unix", sockets[addr]) },
	})
	t.Cleanup(func() { cluster.Close() })
	found, err := (&Checker{Redis: cluster}).redisKeysExpire(t.Context())
	subjects := make(map[string]bool)
	for _, v := range found {
		subjects[v.Subject] = true
		if strings.Contains(v.Subject, "good") || v.Invariant != "redis_keys_expire" {
			t.Errorf("reported %+v", v)
		}
	}
	if err != nil || len(found) != 2*masters*keys || len(subjects) != len(found) {
		t.Errorf("%d violations of %d keys, %v; want %d", len(found), len(subjects), err, 2*masters*keys)
	}
}
