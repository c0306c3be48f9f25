package callback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/inventory"
	"example.com/oncepay/internal/lock"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/payment"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/token"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// bell is a channel with golden bytes of its own, whose notices are facts as JSON under a shared word.
type bell struct {
	payment.Channel
	parsed int
}

func (*bell) Name() string     { return "bell" }
func (*bell) Merchant() string { return "m" }
func (*bell) Charge(_ context.Context, c payment.Charge) (payment.Trade, error) {
	return payment.Trade{TradeNo: "T-" + c.PayNo, Amount: c.Amount, Currency: c.Currency}, nil
}

func (*bell) Verify(h http.Header, _ []byte, _ time.Time) error {
	if h.Get("Word") != "secret" {
		return apperr.New(apperr.Unauthenticated, "signature_invalid", "Not ours.")
	}
	return nil
}

func (b *bell) ParseNotice(body []byte) (payment.Notice, error) {
	b.parsed++
	var n payment.Notice
	if err := json.Unmarshal(body, &n); err != nil {
		return payment.Notice{}, apperr.New(apperr.Invalid, "notice_invalid", "Not readable.").Wrap(err)
	}
	return n, nil
}

func (*bell) Acknowledge() payment.Acknowledgement {
	return payment.Acknowledgement{Status: http.StatusNoContent, ContentType: "text/bell", Body: "ding"}
}

// fixture is a service on a new database, with a clock and one channel.
type fixture struct {
	*Service
	t    *testing.T
	bell *bell
	mu   sync.Mutex
	now  time.Time
	last int
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, m := testenv.OpenDB(t, testenv.Database(t)), metrics.New()
	f := &fixture{t: t, bell: &bell{}, now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	keys := &idemkey.Store{DB: db, Now: f.clock, Lease: time.Minute, Retention: time.Hour, Metrics: m}
	exceptions := &exception.Store{DB: db, Metrics: m, Now: f.clock}
	orders := &order.Service{
		DB: db, Keys: keys, Tokens: &token.Store{Disabled: true}, Locks: lock.None{}, Exceptions: exceptions, Metrics: m, Now: f.clock,
		NewOrderNo: f.number, PayTimeout: 15 * time.Minute,
	}
	f.Service = &Service{DB: db, Exceptions: exceptions, Now: f.clock, Payments: &payment.Service{
		DB: db, Keys: keys, Locks: lock.None{}, Orders: orders, Exceptions: exceptions, Channels: payment.Channels{"bell": f.bell}, Metrics: m,
		Log: slog.New(slog.DiscardHandler), Now: f.clock, NewPayNo: f.number, PublicURL: "http://test", CallBudget: time.Second, Wake: func() {},
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

func (f *fixture) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

func (f *fixture) number() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	return fmt.Sprintf("%032d", f.last), nil
}

func key(op, value string) idemkey.Key {
	return idemkey.Key{Caller: 1001, Value: value + strings.Repeat("-", 20), Operation: op, Fingerprint: "v1:" + value}
}

// offer makes an order with an attempt to pay it, and the notice that it is paid.
func (f *fixture) offer() payment.Notice {
	f.t.Helper()
	ctx := f.t.Context()
	a, err := f.Payments.Orders.Create(ctx, order.CreateInput{UserID: 1001, SKUID: 1, Quantity: 1, Key: key("order.create", fmt.Sprint("create", f.last))})
	if err != nil {
		f.t.Fatal(err)
	}
	var made struct{ Order_no, Pay_no string }
	decode := func(body []byte) {
		if err := json.Unmarshal(body, &made, json.MatchCaseInsensitiveNames(true)); err != nil {
			f.t.Fatal(err)
		}
	}
	decode(a.Body)
	a, err = f.Payments.Pay(ctx, payment.PayInput{OrderNo: made.Order_no, Channel: "bell", By: auth.Caller{UserID: 1001}, Key: key("payment.create", fmt.Sprint("pay", f.last))})
	if err != nil {
		f.t.Fatal(err)
	}
	decode(a.Body)
	return payment.Notice{NotifyID: "N1", Fact: payment.Fact{
		Event: payment.EventPaid, Channel: "bell", Merchant: "m", PayNo: made.Pay_no, TradeNo: "T-" + made.Pay_no, Amount: 100, Currency: "CNY",
		OccurredAt: f.clock(), Source: "notice",
	}}
}

func (f *fixture) receive(word string, n payment.Notice) (payment.Acknowledgement, error) {
	f.t.Helper()
	body, err := json.Marshal(n)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.Receive(f.t.Context(), "bell", http.Header{"Word": {word}}, body)
}

func (f *fixture) count(query string, args ...any) (n int) {
	f.t.Helper()
	if err := f.DB.QueryRow(query, args...).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// wantRows asserts how many notices are kept and how many trades are recorded.
func (f *fixture) wantRows(notices, trades int) {
	f.t.Helper()
	if n, m := f.count("SELECT COUNT(*) FROM t_channel_notice"), f.count("SELECT COUNT(*) FROM t_trade"); n != notices || m != trades {
		f.t.Errorf("%d notices and %d trades, want %d and %d", n, m, notices, trades)
	}
}

// What is not verified is not even read, and no trace of it is kept but a counter.
func TestWhatIsNotVerifiedIsNotRead(t *testing.T) {
	f := newFixture(t)
	ack, err := f.receive("wrong", f.offer())
	if e, ok := apperr.As(err); !ok || e.Kind != apperr.Unauthenticated || ack != (payment.Acknowledgement{}) {
		t.Errorf("got %+v, %v; want Unauthenticated and no acknowledgement", ack, err)
	}
	if f.bell.parsed != 0 {
		t.Error("unverified bytes were parsed")
	}
	f.wantRows(0, 0)
	if n := testutil.ToFloat64(f.Payments.Metrics.NoticesRefused("bell", "signature_invalid")); n != 1 {
		t.Errorf("%v refusals counted, want 1", n)
	}
	if _, err := f.Receive(t.Context(), "nobody", http.Header{}, nil); !apperr.Is(err, "channel_not_found") {
		t.Errorf("an unknown channel: %v", err)
	}
}

// The acknowledgement is the channel's own; each delivery is kept, one has an effect; verified bytes are parsed once each.
func TestARepeatIsAcknowledgedAndKept(t *testing.T) {
	f := newFixture(t)
	n := f.offer()
	for i := range 3 {
		ack, err := f.receive("secret", n)
		if err != nil || ack != f.bell.Acknowledge() {
			t.Fatalf("delivery %d: %+v, %v", i, ack, err)
		}
	}
	f.wantRows(3, 1)
	if f.bell.parsed != 3 {
		t.Errorf("parsed %d times, want once for each delivery", f.bell.parsed)
	}
	if got := f.count("SELECT COUNT(*) FROM t_channel_notice WHERE status = ? AND layer = '' AND applied_at IS NOT NULL", payment.Applied); got != 1 {
		t.Errorf("%d deliveries had an effect, want 1", got)
	}
	if got := f.count("SELECT COUNT(*) FROM t_channel_notice WHERE status = ? AND layer = 'dedup' AND applied_at IS NULL", payment.Repeated); got != 2 {
		t.Errorf("%d repeats are kept with the guard that stopped them, want 2", got)
	}
}

// The notice and its effect are one transaction: what cannot be kept has none, and is undecided, not acknowledged.
func TestANoticeThatCannotBeKeptHasNoEffect(t *testing.T) {
	f := newFixture(t)
	n := f.offer()
	long := n
	long.NotifyID = strings.Repeat("N", 65) // longer than its column
	ack, err := f.receive("secret", long)
	if e, ok := apperr.As(err); !ok || e.Kind != apperr.Unavailable || e.Code != "undecided" || e.RetryAfter == 0 || ack != (payment.Acknowledgement{}) {
		t.Errorf("got %+v, %v; want undecided, and when to come again", ack, err)
	}
	f.wantRows(0, 0)
	if _, err := f.receive("secret", n); err != nil {
		t.Fatal(err)
	}
	f.wantRows(1, 1)
}

// A kept notice is tried again by one instance at a time, without a look at its signature, until what it waits for is there.
func TestAParkedNoticeIsTriedAgainUntilItCounts(t *testing.T) {
	f := newFixture(t)
	n := f.offer()
	payNo := n.Fact.PayNo
	if _, err := f.DB.Exec("UPDATE t_payment SET pay_no = 'not yet' WHERE pay_no = ?", payNo); err != nil {
		t.Fatal(err)
	}
	if _, err := f.receive("secret", n); err != nil {
		t.Fatal(err)
	}
	try := func() {
		t.Helper()
		f.advance(parkedRetry)
		failed := make([]error, 5)
		testenv.Together(len(failed), func(i int) { failed[i] = f.RetryParked(context.Background()) })
		if err := errors.Join(failed...); err != nil {
			t.Errorf("retry: %v", err)
		}
	}
	try()
	f.wantRows(1, 0)
	if _, err := f.DB.Exec("UPDATE t_payment SET pay_no = ? WHERE pay_no = 'not yet'", payNo); err != nil {
		t.Fatal(err)
	}
	if err := f.RetryParked(t.Context()); err != nil { // its time has not come
		t.Fatal(err)
	}
	f.wantRows(1, 0)
	try()
	f.wantRows(1, 1)
	if got := f.count("SELECT COUNT(*) FROM t_channel_notice WHERE status = ? AND order_no <> '' AND next_try_at IS NULL", payment.Applied); got != 1 {
		t.Errorf("%d notices are applied and done, want 1", got)
	}
}

// After a day a person is asked, once, and the notice is not tried again.
func TestAParkedNoticeIsAPersonsAfterADay(t *testing.T) {
	f := newFixture(t)
	n := f.offer()
	n.Fact.PayNo = "nobody"
	if _, err := f.receive("secret", n); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		after time.Duration
		open  int
	}{{parkedFor - time.Second, 0}, {parkedRetry, 1}, {parkedFor, 1}} {
		f.advance(step.after)
		if err := f.RetryParked(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := f.count("SELECT COUNT(*) FROM t_exception WHERE kind = 'unknown_payment'"); got != step.open {
			t.Errorf("%d exceptions %v later, want %d", got, step.after, step.open)
		}
	}
	if got := f.count("SELECT COUNT(*) FROM t_channel_notice WHERE status = ? AND next_try_at IS NULL", payment.Personal); got != 1 {
		t.Errorf("%d notices wait for a person, want 1", got)
	}
}
