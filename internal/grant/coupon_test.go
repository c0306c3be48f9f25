package grant

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

// B102, B44: one person claims fifty times at once, under as many keys, on two instances: one coupon, one 201.
func TestFiftyClaimsOfOnePersonAreOneCoupon(t *testing.T) {
	f := newFixture(t)
	f.mustPut("spring", 10)
	instances := []http.Handler{f.router, routes(f.open(f.dsn))}
	answers := make([]answer, 50)
	testenv.Together(len(answers), func(i int) {
		answers[i] = do(instances[i%2], 1001, http.MethodPost, "/v1/activities/spring/coupons", fmt.Sprint("K", i), "{}")
	})
	created := 0
	for _, a := range answers {
		if a.Code == http.StatusCreated {
			created++
		} else {
			a.want(t, http.StatusOK, "")
		}
		if a.body.CouponNo != answers[0].body.CouponNo || a.body.CouponNo == "" {
			t.Errorf("coupons %q and %q", a.body.CouponNo, answers[0].body.CouponNo)
		}
	}
	if created != 1 {
		t.Errorf("%d times 201, want 1", created)
	}
	f.wantCoupons("spring", 1)
	f.wantCoupons("", 0)
}

// Ten coupons, thirty persons at once: ten get one, twenty are told that there are none left, and their rows are gone.
func TestThirtyPersonsWantOneOfTenCoupons(t *testing.T) {
	f := newFixture(t)
	f.mustPut("spring", 10)
	var got, none atomic.Int64
	testenv.Together(30, func(i int) {
		switch a := f.claim(int64(1001+i), "spring", "K1"); {
		case a.Code == http.StatusCreated:
			got.Add(1)
		case a.Code == http.StatusConflict && a.body.Code == "coupons_exhausted":
			none.Add(1)
		default:
			t.Errorf("%d %s", a.Code, a.Body)
		}
	})
	if got.Load() != 10 || none.Load() != 20 {
		t.Errorf("%d got one, %d were told there are none", got.Load(), none.Load())
	}
	f.wantCoupons("spring", 10)
}

// The same key gets the same bytes, another key the coupon as it is now; also when all are granted and after the activity's end.
func TestARepeatFindsItsCoupon(t *testing.T) {
	f := newFixture(t)
	f.mustPut("spring", 1)
	first := f.claim(1001, "spring", "K1")
	first.want(t, http.StatusCreated, "")
	const want = `{"coupon_no":"00000000000000000000000000000001","activity_id":"spring","template":"ten-off","discount":10,` +
		`"status":"UNUSED","order_no":null,"created_at":"2026-05-01T12:00:00Z"}` + "\n"
	if first.Body.String() != want || first.Header().Get("Location") != "/v1/me/coupons" {
		t.Errorf("%s at %q", first.Body, first.Header().Get("Location"))
	}
	repeat := func(key string, replayed bool) {
		t.Helper()
		a := f.claim(1001, "spring", key)
		status := http.StatusOK
		if replayed {
			status = first.Code
		}
		if a.Code != status || a.Body.String() != want || a.Header().Get("Idempotent-Replayed") != fmt.Sprint(replayed) {
			t.Errorf("%s: %d %s, replayed %s", key, a.Code, a.Body, a.Header().Get("Idempotent-Replayed"))
		}
	}
	repeat("K1", true)
	repeat("K2", false)
	if n := testutil.ToFloat64(f.Metrics.GuardHits(apperr.LayerUniqueIndex, opClaim, metrics.Replayed)); n != 1 {
		t.Errorf("%v repeats counted, want 1", n)
	}
	f.claim(1002, "spring", "K1").want(t, http.StatusConflict, "coupons_exhausted")
	f.advance(retention) // the activity is over, and the key's answer is gone
	repeat("K1", false)
	repeat("K3", false)
	f.claim(1003, "spring", "K1").want(t, http.StatusConflict, "activity_not_running")
	f.wantCoupons("spring", 1)
}

func TestClaimsAreRefused(t *testing.T) {
	f := newFixture(t)
	f.mustPut("plain", 0)
	f.advance(time.Hour)
	f.mustPut("later", 1)
	f.advance(-time.Microsecond)
	f.claim(1001, "plain", "K1").want(t, http.StatusConflict, "no_coupon")
	f.claim(1001, "later", "K2").want(t, http.StatusConflict, "activity_not_running")
	f.claim(1001, "nothing", "K3").want(t, http.StatusNotFound, "activity_not_found")
	f.claim(1001, "no.id", "K4").want(t, http.StatusBadRequest, "activity_id_invalid")
	f.claim(1001, "later", "").want(t, http.StatusBadRequest, "idempotency_key_required")
	do(f.router, 1001, http.MethodPost, "/v1/activities/later/coupons", "K5", `{"n":1}`).want(t, http.StatusBadRequest, "body_invalid")
	f.advance(time.Microsecond)
	f.claim(1001, "later", "K2").want(t, http.StatusConflict, "activity_not_running") // final for its key
	f.claim(1001, "later", "K3").want(t, http.StatusCreated, "")                      // a 404 leaves its key unused
	f.wantCoupons("later", 1)
}

// step runs one step of an order's coupon in a transaction of its own.
func (f *fixture) step(do func(ctx context.Context, tx *sql.Tx) error) error {
	return f.DB.InTx(f.t.Context(), func(tx *sql.Tx) error { return do(f.t.Context(), tx) })
}

func orderNo(n int) string { return fmt.Sprintf("%032x", n) }

// wantCoupon asserts where a coupon stands.
func (f *fixture) wantCoupon(couponNo string, status Status, order string) {
	f.t.Helper()
	c, err := ownCoupon(f.t.Context(), f.DB, 1001, couponNo)
	if err != nil || c.Status != status || c.OrderNo != order {
		f.t.Errorf("coupon %+v, %v; want %s by %q", c, err, status, order)
	}
}

// B102: twenty orders want one coupon, one gets it.
func TestACouponIsUsedByOneOrder(t *testing.T) {
	f := newFixture(t)
	f.mustPut("spring", 1)
	no := f.claim(1001, "spring", "K1").body.CouponNo
	used := make([]error, 20)
	testenv.Together(len(used), func(i int) {
		used[i] = f.step(func(ctx context.Context, tx *sql.Tx) error { return Use(ctx, tx, 1001, no, orderNo(i), f.clock()) })
	})
	winner := -1
	for i, err := range used {
		switch e, ok := apperr.As(err); {
		case err == nil && winner < 0:
			winner = i
		case !ok || e.Kind != apperr.Conflict || e.Code != "coupon_used" || e.Layer != apperr.LayerState:
			t.Errorf("order %d: %v", i, err)
		}
	}
	f.wantCoupon(no, Used, orderNo(winner))
	if d, err := Discount(t.Context(), f.DB, 1001, no); d != 10 || err != nil {
		t.Errorf("a used coupon's discount: %d, %v; want it for a twin of its order", d, err)
	}
}

// The way of a coupon: used, given back, used by another order, then not to be had for the first one. Each step that does not fit
// is an error, so that its transaction is rolled back.
func TestACouponGoesBackOnceAndByItsOrderOnly(t *testing.T) {
	f := newFixture(t)
	f.mustPut("spring", 1)
	no := f.claim(1001, "spring", "K1").body.CouponNo
	first, second := orderNo(1), orderNo(2)
	use := func(order string) error {
		return f.step(func(ctx context.Context, tx *sql.Tx) error { return Use(ctx, tx, 1001, no, order, f.clock()) })
	}
	giveBack := func(order string) error {
		return f.step(func(ctx context.Context, tx *sql.Tx) error { return GiveBack(ctx, tx, no, order, f.clock()) })
	}
	takeBack := func(order string) (taken bool) {
		if err := f.step(func(ctx context.Context, tx *sql.Tx) (err error) {
			taken, err = TakeBack(ctx, tx, no, order, f.clock())
			return err
		}); err != nil {
			t.Error(err)
		}
		return taken
	}
	if giveBack(first) == nil {
		t.Error("what nobody uses was given back")
	}
	if err := use(first); err != nil {
		t.Fatal(err)
	}
	if giveBack(second) == nil {
		t.Error("another order gave the coupon back")
	}
	f.wantCoupon(no, Used, first)
	if err := giveBack(first); err != nil {
		t.Fatal(err)
	}
	f.wantCoupon(no, Unused, "")
	if giveBack(first) == nil {
		t.Error("the coupon was given back twice")
	}
	if !takeBack(first) {
		t.Error("an unused coupon could not be taken back")
	}
	f.wantCoupon(no, Used, first)
	if err := errors.Join(giveBack(first), use(second)); err != nil {
		t.Fatal(err)
	}
	if takeBack(first) {
		t.Error("a coupon was taken from the order that uses it")
	}
	f.wantCoupon(no, Used, second)
}

// B21: numbers that differ in case are two; another's coupon is not there; a void one is refused.
func TestOnlyTheOwnerUsesACoupon(t *testing.T) {
	f := newFixture(t)
	lower, upper := strings.Repeat("a", 32), strings.Repeat("A", 32)
	for i, no := range []string{lower, upper} {
		c := Coupon{CouponNo: no, UserID: int64(1001 + i), GrantKey: no, Template: "t", Discount: 5, CreatedAt: f.clock()}
		if err := f.step(func(ctx context.Context, tx *sql.Tx) error { return insertCoupon(ctx, tx, c) }); err != nil {
			t.Fatal(err)
		}
	}
	wantCode := func(err error, code string) {
		t.Helper()
		if !apperr.Is(err, code) {
			t.Errorf("%v, want %s", err, code)
		}
	}
	use := func(user int64, no string) error {
		return f.step(func(ctx context.Context, tx *sql.Tx) error { return Use(ctx, tx, user, no, orderNo(1), f.clock()) })
	}
	_, err := Discount(t.Context(), f.DB, 1001, upper)
	wantCode(err, "coupon_not_found")
	wantCode(use(1001, upper), "coupon_not_found")
	wantCode(use(1001, "nothing"), "coupon_not_found")
	f.wantCoupon(lower, Unused, "")
	if _, err := f.DB.ExecContext(t.Context(), "UPDATE t_coupon SET status = ? WHERE coupon_no = ?", Void, lower); err != nil {
		t.Fatal(err)
	}
	wantCode(use(1001, lower), "coupon_void")
	f.wantCoupon(lower, Void, "")
}

// Two numbers that clash say nothing about the cause: the claim runs again with another one.
func TestAClashOfNumbersIsNoRepeat(t *testing.T) {
	f := newFixture(t)
	f.mustPut("spring", 2)
	numbers := []string{orderNo(7), orderNo(7), orderNo(8)}
	f.NewCouponNo = func() (string, error) { return numbers[f.number()-1], nil }
	f.claim(1, "spring", "K1").want(t, http.StatusCreated, "")
	if a := f.claim(2, "spring", "K1"); a.Code != http.StatusCreated || a.body.CouponNo != orderNo(8) {
		t.Errorf("%d %s", a.Code, a.Body)
	}
	broken := errors.New("no numbers left")
	f.NewCouponNo = func() (string, error) { return "", broken }
	f.mustPut("summer", 2)
	f.claim(1, "summer", "K2").want(t, http.StatusInternalServerError, "internal")
	f.wantCoupons("summer", 0)
}

// A repeat that finds neither its coupon nor room for one may come again: nothing is concluded.
func TestAGrantThatIsGoneIsUndecided(t *testing.T) {
	f := newFixture(t)
	if _, err := f.granted(t.Context(), opClaim, "g1:a:1:x:1"); !errors.Is(err, mysqldb.ErrStale) {
		t.Errorf("%v", err)
	}
}

func TestAPersonSeesTheirOwnCoupons(t *testing.T) {
	f := newFixture(t)
	var numbers []string
	for i := range 3 {
		id := fmt.Sprint("a", i)
		f.mustPut(id, 5)
		numbers = append(numbers, f.claim(1001, id, "K"+id).body.CouponNo)
	}
	f.claim(1002, "a0", "K1")
	if err := f.step(func(ctx context.Context, tx *sql.Tx) error {
		return Use(ctx, tx, 1001, numbers[1], orderNo(1), f.clock())
	}); err != nil {
		t.Fatal(err)
	}
	page := f.get(1001, "/v1/me/coupons?limit=2")
	if d := page.body.Data; len(d) != 2 || d[0].CouponNo != numbers[2] || d[1].CouponNo != numbers[1] || d[1].OrderNo == nil || *d[1].OrderNo != orderNo(1) {
		t.Errorf("first page %s", page.Body)
	}
	page = f.get(1001, "/v1/me/coupons?limit=2&cursor="+page.body.NextCursor)
	if d := page.body.Data; len(d) != 1 || d[0].CouponNo != numbers[0] || page.body.NextCursor != "" {
		t.Errorf("second page %s", page.Body)
	}
	for status, want := range map[string]int{"UNUSED": 2, "USED": 1, "VOID": 0} {
		if a := f.get(1001, "/v1/me/coupons?status="+status); len(a.body.Data) != want || want > 0 && a.body.Data[0].Status != status {
			t.Errorf("%s: %s", status, a.Body)
		}
	}
	f.get(1001, "/v1/me/coupons?status=unused").want(t, http.StatusBadRequest, "status_invalid")
	f.get(1001, "/v1/me/coupons?limit=0").want(t, http.StatusBadRequest, "limit_invalid")
}
