package grant

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"

	"example.com/oncepay/internal/activity"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/web"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const retention = time.Hour

// fixture is a service on a new database with its routes, and a clock the test moves.
type fixture struct {
	*Service
	t      *testing.T
	dsn    string
	router http.Handler

	mu   sync.Mutex
	now  time.Time
	last int // number of the last coupon or code
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, dsn: testenv.Database(t), now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	f.Service = f.open(f.dsn)
	f.router = routes(f.Service)
	return f
}

// open returns one more service on the database, as another instance has it.
func (f *fixture) open(dsn string) *Service {
	db, m := testenv.OpenDB(f.t, dsn), metrics.New()
	return &Service{
		DB: db, Keys: &idemkey.Store{DB: db, Now: f.clock, Lease: time.Minute, Retention: retention, Metrics: m}, Metrics: m, Now: f.clock,
		NewCouponNo: func() (string, error) { return fmt.Sprintf("%032d", f.number()), nil },
		NewCode:     func() string { return fmt.Sprintf("%016d", f.number()) },
	}
}

func routes(s *Service) http.Handler {
	h, router := &HTTP{Service: s}, chi.NewRouter()
	router.Post("/v1/activities/{activity_id}/coupons", web.Handle(h.Claim))
	router.Post("/v1/points/redemptions", web.Handle(h.Redeem))
	router.Post("/v1/coupon-codes", web.Handle(h.MakeCode))
	router.Get("/v1/me/coupons", web.Handle(h.Coupons))
	router.Get("/v1/me/points", web.Handle(h.Points))
	return router
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

func (f *fixture) number() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	return f.last
}

// answer is a response that was read.
type answer struct {
	*httptest.ResponseRecorder
	body struct {
		Code, Template string
		CouponNo       string `json:"coupon_no"`
		Balance        int64
		RedemptionNo   string `json:"redemption_no"`
		Coupon         struct {
			Discount int64
			CouponNo string `json:"coupon_no"`
		}
		Data []struct {
			ID, Delta   int64
			Kind, Cause string
			Status      string
			CouponNo    string  `json:"coupon_no"`
			OrderNo     *string `json:"order_no"`
		}
		NextCursor string `json:"next_cursor"`
	}
}

// do sends a request of a user, under a key unless that is "".
func do(router http.Handler, user int64, method, target, key, body string) answer {
	r := httptest.NewRequestWithContext(auth.With(context.Background(), auth.Caller{UserID: user}), method, target, strings.NewReader(body))
	if key != "" {
		r.Header.Set(idemkey.Header, key+strings.Repeat("-", 20))
	}
	a := answer{ResponseRecorder: httptest.NewRecorder()}
	router.ServeHTTP(a, r)
	if err := json.Unmarshal(a.Body.Bytes(), &a.body, json.MatchCaseInsensitiveNames(true)); err != nil {
		panic(err)
	}
	return a
}

func (f *fixture) claim(user int64, activityID, key string) answer {
	return do(f.router, user, http.MethodPost, "/v1/activities/"+activityID+"/coupons", key, "")
}

func (f *fixture) redeem(user int64, key, template string) answer {
	return do(f.router, user, http.MethodPost, "/v1/points/redemptions", key, fmt.Sprintf(`{"points":100,"coupon_template":%q}`, template))
}

func (f *fixture) get(user int64, target string) answer {
	return do(f.router, user, http.MethodGet, target, "", "")
}

// put makes or changes an activity of an hour that grants limit coupons; 0: none.
func (f *fixture) put(id string, limit int64) error {
	a := activity.Activity{ID: id, Title: "sale", StartsAt: f.clock(), EndsAt: f.clock().Add(time.Hour)}
	if limit > 0 {
		a.Coupon = &activity.Coupon{Template: "ten-off", Discount: 10, Limit: limit}
	}
	_, err := (&activity.Store{DB: f.DB, Now: f.clock}).Put(f.t.Context(), a)
	return err
}

func (f *fixture) mustPut(id string, limit int64) {
	f.t.Helper()
	if err := f.put(id, limit); err != nil {
		f.t.Fatal(err)
	}
}

// message is one about an order's money.
func message(id, orderNo string, user, paid, refunded int64, seq int) outbox.Stored {
	return outbox.Stored{ID: id, Topic: "order.paid", Key: orderNo, Payload: fmt.Appendf(nil,
		`{"order_no":%q,"user_id":%d,"status":"PAID","paid":%d,"refunded":%d,"refund_seq":%d}`, orderNo, user, paid, refunded, seq)}
}

// handle lets the consumer have a message, in a transaction of its own.
func (f *fixture) handle(m outbox.Stored) (outcome string, err error) {
	err = f.DB.InTx(f.t.Context(), func(tx *sql.Tx) error {
		outcome, err = Points{Now: f.clock}.Handle(f.t.Context(), tx, m)
		return err
	})
	return outcome, err
}

// earn gives a user points by an order of their own.
func (f *fixture) earn(user, points int64) {
	f.t.Helper()
	no := fmt.Sprintf("%032d", f.number())
	if outcome, err := f.handle(message("m:"+no, no, user, 100*points, 0, 0)); err != nil || outcome != "applied" {
		f.t.Fatalf("%s, %v", outcome, err)
	}
}

func (f *fixture) count(query string, args ...any) (n int64) {
	f.t.Helper()
	if err := f.DB.QueryRowContext(f.t.Context(), query, args...).Scan(&n); err != nil {
		f.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// wantPoints asserts a balance, and that it is the sum of its entries.
func (f *fixture) wantPoints(user, want int64) {
	f.t.Helper()
	balance, err := getBalance(f.t.Context(), f.DB, user)
	if sum := f.count("SELECT COALESCE(SUM(delta), 0) FROM t_point_entry WHERE user_id = ?", user); err != nil || balance != want || sum != want {
		f.t.Errorf("user %d has %d points, entries of %d (%v); want %d", user, balance, sum, err, want)
	}
}

// wantCoupons asserts how many coupons there are, and that an activity has counted its own.
func (f *fixture) wantCoupons(activityID string, want int64) {
	f.t.Helper()
	rows := f.count("SELECT COUNT(*) FROM t_coupon WHERE activity_id = ?", activityID)
	counted := rows
	if activityID != "" {
		counted = f.count("SELECT coupon_granted FROM t_activity WHERE activity_id = ?", activityID)
	}
	if rows != want || counted != want {
		f.t.Errorf("activity %q: %d coupons, %d counted; want %d", activityID, rows, counted, want)
	}
}

func (a answer) want(t *testing.T, status int, code string) {
	t.Helper()
	if a.Code != status || status >= 400 && a.body.Code != code {
		t.Errorf("%d %s; want %d %s", a.Code, a.Body, status, code)
	}
}
