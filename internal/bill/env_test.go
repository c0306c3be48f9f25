package bill

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/inventory"
	"example.com/oncepay/internal/lock"
	"example.com/oncepay/internal/metrics"
	fake "example.com/oncepay/internal/mockpay"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/payment"
	adapter "example.com/oncepay/internal/payment/mockpay"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/token"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// spied is the real adapter with a place to look and to interfere.
type spied struct {
	payment.Channel

	silent  bool // a bill is asked for and never comes
	mu      sync.Mutex
	fetched []string
	fetch   func(payment.Bill, error) (payment.Bill, error) // what becomes of a bill that was fetched
}

func (c *spied) Bill(ctx context.Context, day string) (payment.Bill, error) {
	if c.silent {
		<-ctx.Done()
		return payment.Bill{}, ctx.Err()
	}
	b, err := c.Channel.Bill(ctx, day)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fetched = append(c.fetched, day)
	if c.fetch != nil {
		return c.fetch(b, err)
	}
	return b, err
}

func (c *spied) days() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.fetched))
}

// fixture is a service on a new database with the fake channel, and one clock for both.
type fixture struct {
	*Service
	t    *testing.T
	ch   *spied
	url  string
	keys *idemkey.Store
	mu   sync.Mutex
	now  time.Time
	last int
}

// today is the channel's day that the clock begins in, at 20:00 of its zone.
const today = "2026-05-01"

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, m := testenv.OpenDB(t, testenv.Database(t)), metrics.New()
	f := &fixture{t: t, now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	server, err := fake.New(fake.Config{Merchants: map[string][]string{"m-mockpay": {"s"}}, Now: f.clock, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(server)
	t.Cleanup(func() { listener.Close(); server.Close(context.Background()) })
	f.url = listener.URL
	f.ch = &spied{Channel: &adapter.Channel{ChannelName: "mockpay", MerchantID: "m-mockpay", BaseURL: f.url, Client: listener.Client()}}
	f.keys = &idemkey.Store{DB: db, Now: f.clock, Lease: time.Minute, Retention: time.Hour, Metrics: m}
	exceptions := &exception.Store{DB: db, Metrics: m, Now: f.clock}
	orders := &order.Service{
		DB: db, Keys: f.keys, Tokens: &token.Store{Disabled: true}, Locks: lock.None{}, Exceptions: exceptions, Metrics: m, Now: f.clock,
		NewOrderNo: f.number, PayTimeout: 15 * time.Minute,
	}
	f.Service = &Service{DB: db, Exceptions: exceptions, Now: f.clock, Metrics: m, Payments: &payment.Service{
		DB: db, Keys: f.keys, Locks: lock.None{}, Orders: orders, Exceptions: exceptions, Channels: payment.Channels{"mockpay": f.ch}, Metrics: m,
		Log: slog.New(slog.DiscardHandler), Now: f.clock, NewPayNo: f.number, PublicURL: "http://test", CallBudget: 5 * time.Second, Wake: func() {},
	}}
	var d inventory.Definition
	if err := json.Unmarshal([]byte(`{"title":"goods","price":100,"currency":"CNY","stock":100}`), &d); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (&inventory.Service{DB: db, Now: f.clock}).Put(t.Context(), 1, d); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fixture) set(at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = at
}

func (f *fixture) advance(d time.Duration) { f.set(f.clock().Add(d)) }

func (f *fixture) number() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	return fmt.Sprintf("%032d", f.last), nil
}

func (f *fixture) key(op string) idemkey.Key {
	no, _ := f.number()
	return idemkey.Key{Caller: 1001, Value: op + no, Operation: op, Fingerprint: "v1:" + no}
}

// call makes a call to the fake channel.
func (f *fixture) call(method, path, body string) {
	f.t.Helper()
	req, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 {
		f.t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, answer)
	}
}

func (f *fixture) spoil(fault string) {
	f.t.Helper()
	f.call("PUT", "/v1/faults", `{"bill":`+fault+`}`)
}

// sale is an order over 100 CNY with an attempt to pay it, known to the channel.
type sale struct{ orderNo, payNo, tradeNo string }

func (f *fixture) offer() sale {
	f.t.Helper()
	a, err := f.Payments.Orders.Create(f.t.Context(), order.CreateInput{UserID: 1001, SKUID: 1, Quantity: 1, Key: f.key("order.create")})
	if err != nil {
		f.t.Fatal(err)
	}
	var made struct {
		OrderNo string `json:"order_no"`
		PayNo   string `json:"pay_no"`
		TradeNo string `json:"trade_no"`
	}
	if err := json.Unmarshal(a.Body, &made); err != nil {
		f.t.Fatal(err)
	}
	a, err = f.Payments.Pay(f.t.Context(), payment.PayInput{OrderNo: made.OrderNo, Channel: "mockpay", By: auth.Caller{UserID: 1001}, Key: f.key("payment.create")})
	if err != nil {
		f.t.Fatal(err)
	}
	if err := json.Unmarshal(a.Body, &made); err != nil {
		f.t.Fatal(err)
	}
	return sale{made.OrderNo, made.PayNo, made.TradeNo}
}

// buy lets the buyer pay; no notice is sent.
func (f *fixture) buy(s sale) {
	f.t.Helper()
	f.call("POST", "/v1/trades/"+s.payNo+"/pay?notify=off", "")
}

// notice lets a notice take effect.
func (f *fixture) notice(event payment.Event, s sale, refundNo string, amount money.Amount) {
	f.t.Helper()
	f.apply(payment.Fact{Event: event, PayNo: s.payNo, TradeNo: s.tradeNo, RefundNo: refundNo, Amount: amount, OccurredAt: f.clock()})
}

func (f *fixture) apply(fact payment.Fact) {
	f.t.Helper()
	fact.Channel, fact.Merchant, fact.Currency, fact.Source = "mockpay", "m-mockpay", "CNY", "notice"
	err := f.DB.InTx(f.t.Context(), func(tx *sql.Tx) error { _, err := f.Payments.Apply(f.t.Context(), tx, fact); return err })
	if err != nil {
		f.t.Fatal(err)
	}
}

// sold is a sale that is paid and noticed.
func (f *fixture) sold() sale {
	f.t.Helper()
	s := f.offer()
	f.buy(s)
	f.notice(payment.EventPaid, s, "", 100)
	return s
}

// refund asks for money back and sends the request; the channel has not decided.
func (f *fixture) refund(s sale, refundNo string, amount money.Amount) {
	f.t.Helper()
	_, err := f.Payments.RequestRefund(f.t.Context(), payment.RefundInput{
		OrderNo: s.orderNo, RefundNo: refundNo, Amount: amount, Reason: "test", By: auth.Caller{UserID: 1001}, Key: f.key("refund.create"),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.call("POST", "/v1/refunds", fmt.Sprintf(`{"merchant_id":"m-mockpay","out_refund_no":"%s","out_trade_no":"%s","amount":%d,"notify_url":""}`, refundNo, s.payNo, amount))
}

// decide lets the channel decide a refund (succeed or fail); no notice is sent.
func (f *fixture) decide(refundNo, how string) {
	f.t.Helper()
	f.call("POST", "/v1/refunds/"+refundNo+"/"+how+"?notify=off", "")
}

func ops() auth.Caller { return auth.Caller{UserID: 7, Ops: true} }

// run reconciles a day, which must succeed.
func (f *fixture) run(date string) Reconciliation {
	f.t.Helper()
	rec, _, err := f.Reconcile(f.t.Context(), "mockpay", date, ops())
	if err != nil {
		f.t.Fatal(err)
	}
	return rec
}

// wantDifferences asserts what is reported: "class subject outcome", in any order.
func (f *fixture) wantDifferences(rec Reconciliation, want ...string) {
	f.t.Helper()
	var got []string
	for _, d := range rec.Differences {
		got = append(got, fmt.Sprintf("%s %s %s", d.Class, d.Subject, d.Outcome))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		f.t.Errorf("%s has\n%s\nwant\n%s", rec.Date, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (f *fixture) count(query string, args ...any) (n int) {
	f.t.Helper()
	if err := f.DB.QueryRow(query, args...).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// want asserts a count.
func (f *fixture) want(n int, query string, args ...any) {
	f.t.Helper()
	if got := f.count(query, args...); got != n {
		f.t.Errorf("%d rows, want %d: %s %v", got, n, query, args)
	}
}

// wantExceptions asserts all there are: "kind subject".
func (f *fixture) wantExceptions(want ...string) {
	f.t.Helper()
	rows, err := f.DB.Query("SELECT CONCAT(kind, ' ', subject) FROM t_exception")
	if err != nil {
		f.t.Fatal(err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			f.t.Fatal(err)
		}
		got = append(got, s)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		f.t.Errorf("exceptions\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
