package order

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/inventory"
	"example.com/oncepay/internal/lock"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/token"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const stock = 100

func now() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// fixture is a service on a new database with one SKU, without the guards that live in Redis.
type fixture struct {
	*Service
	t    *testing.T
	mu   sync.Mutex
	last int // number of the last order
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, m := testenv.OpenDB(t, testenv.Database(t)), metrics.New()
	f := &fixture{t: t}
	f.Service = &Service{
		DB: db, Keys: &idemkey.Store{DB: db, Now: now, Lease: time.Minute, Retention: time.Hour, Metrics: m},
		Tokens: &token.Store{Disabled: true}, Locks: lock.None{}, Metrics: m, Now: now, NewOrderNo: f.number, PayTimeout: 15 * time.Minute,
	}
	f.sku(1, 100)
	return f
}

func (f *fixture) sku(id int64, price money.Amount) {
	f.t.Helper()
	goods := inventory.Service{DB: f.DB, Now: now}
	if _, _, err := goods.Put(f.t.Context(), id, inventory.Definition{Title: "goods", Price: price, Currency: "CNY", Stock: stock}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) number() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	return fmt.Sprintf("%032d", f.last), nil
}

// input is a purchase under a key of its own.
func input(user int64, key string) CreateInput {
	return CreateInput{
		UserID: user, SKUID: 1, Quantity: 2,
		Key: idemkey.Key{Caller: user, Value: key + strings.Repeat("-", 20), Operation: opCreate, Fingerprint: "v1:" + key},
	}
}

// order makes an order of user 1001 and returns its number.
func (f *fixture) order(key string) string {
	f.t.Helper()
	a, err := f.Create(f.t.Context(), input(1001, key))
	if err != nil || a.Status != 201 {
		f.t.Fatalf("create: %d %s, %v", a.Status, a.Body, err)
	}
	return strings.TrimPrefix(a.Location, "/v1/orders/")
}

// action asks for a move in a transaction of its own.
type action func(ctx context.Context, f *fixture, orderNo string) (Outcome, error)

func apply(m Move) action {
	return func(ctx context.Context, f *fixture, orderNo string) (outcome Outcome, err error) {
		err = f.DB.InTx(ctx, func(tx *sql.Tx) error { _, outcome, err = f.Apply(ctx, tx, orderNo, m); return err })
		return outcome, err
	}
}

func pay(trade string) action {
	return func(ctx context.Context, f *fixture, orderNo string) (outcome Outcome, err error) {
		err = f.DB.InTx(ctx, func(tx *sql.Tx) error { _, outcome, err = f.MarkPaid(ctx, tx, orderNo, trade, now()); return err })
		return outcome, err
	}
}

// byOwner adapts Cancel, Ship and Finish, which do not say whether they applied: the version does, as long as nobody else
// moves the order.
func byOwner(step func(*Service, context.Context, *sql.Tx, string, auth.Caller) (Order, error)) action {
	return func(ctx context.Context, f *fixture, orderNo string) (outcome Outcome, err error) {
		err = f.DB.InTx(ctx, func(tx *sql.Tx) error {
			before, err := Get(ctx, tx, orderNo)
			if err != nil {
				return err
			}
			after, err := step(f.Service, ctx, tx, orderNo, auth.Caller{UserID: 1001})
			if err == nil && before != nil && after.Version == before.Version {
				outcome = Already
			}
			return err
		})
		return outcome, err
	}
}

func cancel() action { return byOwner((*Service).Cancel) }
func ship() action   { return byOwner((*Service).Ship) }
func finish() action { return byOwner((*Service).Finish) }

// refund moves on the way of a full refund, which package payment will do.
func refund(from, to Status) action {
	return apply(Move{From: []Status{from}, To: to, Cause: "refund:1:" + to.String(), Actor: "system:refund"})
}

// walk brings an order to a state by its shortest legal way, paid by trade t1.
func (f *fixture) walk(orderNo string, to Status) {
	f.t.Helper()
	for _, step := range map[Status][]action{
		Init: nil, Paid: {pay("t1")}, Shipped: {pay("t1"), ship()}, Finished: {pay("t1"), finish()}, Cancelled: {cancel()},
		Refunding: {pay("t1"), refund(Paid, Refunding)}, Refunded: {pay("t1"), refund(Paid, Refunding), refund(Refunding, Refunded)},
	}[to] {
		if outcome, err := step(f.t.Context(), f, orderNo); err != nil || outcome != Applied {
			f.t.Fatalf("on the way to %s: %v, %v", to, outcome, err)
		}
	}
}

func (f *fixture) count(query string, args ...any) (n int) {
	f.t.Helper()
	if err := f.DB.QueryRowContext(f.t.Context(), query, args...).Scan(&n); err != nil {
		f.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// wantOrder asserts where an order stands, and that its version, history and messages agree.
func (f *fixture) wantOrder(orderNo string, status Status, version int) {
	f.t.Helper()
	o, err := Get(f.t.Context(), f.DB, orderNo)
	if err != nil || o == nil || o.Status != status || o.Version != version {
		f.t.Errorf("order %s: %+v, %v; want %s in version %d", orderNo, o, err, status, version)
	}
	if n := f.count("SELECT COUNT(*) FROM t_order_history WHERE order_no = ?", orderNo); n != version {
		f.t.Errorf("%d rows of history, want %d", n, version)
	}
	if n := f.count("SELECT COUNT(*) FROM t_outbox WHERE partition_key = ?", orderNo); n != version {
		f.t.Errorf("%d messages, want %d", n, version)
	}
}

func (f *fixture) wantStock(available, reserved, sold int64) {
	f.t.Helper()
	sku, err := inventory.Get(f.t.Context(), f.DB, 1)
	if err != nil || sku.Available != available || sku.Reserved != reserved || sku.Sold != sold {
		f.t.Errorf("stock %+v, %v; want %d available, %d reserved, %d sold", sku, err, available, reserved, sold)
	}
}
