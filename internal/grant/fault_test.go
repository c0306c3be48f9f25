package grant

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

// B56, B19: whichever statement is cut off, before or after the server has done it, the repeat ends with one effect.
func TestACutStatementChangesNothingTwice(t *testing.T) {
	f := newFixture(t)
	f.mustPut("spring", 1000)
	f.earn(1001, 100*RedemptionPrice)
	proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
	faulty := f.open(dsn)
	router := routes(faulty)
	wantPoints, wantBought, wantGranted, n := int64(100*RedemptionPrice), int64(0), int64(0), 0
	until := func(what string, done func() bool) {
		t.Helper()
		for try := 1; !done(); try++ {
			if try == 5 {
				t.Fatalf("%s: not done after %d tries", what, try)
			}
		}
	}
	for name, fault := range map[string]testenv.Action{"cut before": testenv.CutBefore(), "reply lost": testenv.SwallowReply()} {
		for _, statement := range []string{
			"INSERT INTO t_idempotency_key", "INSERT INTO t_point_entry", "INSERT INTO t_coupon", "UPDATE t_point_account", "UPDATE t_idempotency_key", "COMMIT",
			"UPDATE t_activity", "INSERT INTO t_order_points",
		} {
			what, key := name+" "+statement, fmt.Sprint("K", n)
			rule := proxy.On(testenv.Contains(statement), 1, fault)
			until(what, func() bool {
				return do(router, 1001, http.MethodPost, "/v1/points/redemptions", key, `{"points":100,"coupon_template":"x"}`).Code == http.StatusCreated
			})
			until(what, func() bool { // a user of their own, as one gets one coupon
				return do(router, int64(5000+n), http.MethodPost, "/v1/activities/spring/coupons", key, "").Code == http.StatusCreated
			})
			until(what, func() bool {
				return faulty.DB.InTx(t.Context(), func(tx *sql.Tx) error {
					_, err := Points{Now: f.clock}.Handle(t.Context(), tx, message("m"+key, orderNo(1000+n), 1001, 700, 0, 0))
					return err
				}) == nil
			})
			n, wantPoints, wantBought, wantGranted = n+1, wantPoints-RedemptionPrice+7, wantBought+1, wantGranted+1
			if rule.Hits() != 1 {
				t.Errorf("%s: the fault did not happen", what)
			}
			f.wantPoints(1001, wantPoints)
			f.wantCoupons("", wantBought)
			f.wantCoupons("spring", wantGranted)
		}
	}
}

// B58: callers who go away at random leave neither points without a coupon nor a coupon without its count.
func TestCallersWhoGoAwayLeaveNothingHalfDone(t *testing.T) {
	f := newFixture(t)
	const callers = 200
	f.mustPut("spring", callers)
	f.earn(1001, callers*RedemptionPrice)
	testenv.Together(10, func(worker int) {
		for i := worker; i < callers; i += 10 {
			ctx, cancel := context.WithTimeout(auth.With(context.Background(), auth.Caller{UserID: 1001}), rand.N(30*time.Millisecond))
			key := func(user int64) idemkey.Key {
				return idemkey.Key{Caller: user, Value: fmt.Sprintf("K-%020d", i), Operation: "op", Fingerprint: "v1:x"}
			}
			// Whether they got an answer is not the question.
			_, _ = f.Redeem(ctx, "x", key(1001))
			_, _ = f.Claim(ctx, int64(5000+i), "spring", key(int64(5000+i)))
			cancel()
		}
	})
	bought := f.count("SELECT COUNT(*) FROM t_point_entry WHERE kind = 'redeem'")
	f.wantPoints(1001, (callers-bought)*RedemptionPrice)
	f.wantCoupons("", bought)
	f.wantCoupons("spring", f.count("SELECT COUNT(*) FROM t_coupon WHERE activity_id = 'spring'"))
}

// Two messages that meet at a row: the one that looked too early runs again.
func TestMessagesThatMeetRunAgain(t *testing.T) {
	first, second := orderNo(1), orderNo(2)
	for name, c := range map[string]struct {
		statement string        // after which the slow one stops
		before    outbox.Stored // was handled before, if there is one
		other     outbox.Stored // is handled meanwhile
		want      int64
	}{
		"an order's first row":   {"FROM t_order_points", outbox.Stored{}, message("m1", first, 1001, 1000, 300, 1), 10},
		"an order's row":         {"FROM t_order_points", message("m0", first, 1001, 1000, 500, 0), message("m1", first, 1001, 1000, 300, 1), 10},
		"a newer word":           {"FROM t_order_points", message("m0", first, 1001, 1000, 500, 0), message("m9", first, 1001, 1000, 200, 9), 8},
		"an account's first row": {"UPDATE t_point_account", outbox.Stored{}, message("m2", second, 1001, 700, 0, 0), 17},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if c.before.ID != "" {
				if _, err := f.handle(c.before); err != nil {
					t.Fatal(err)
				}
			}
			proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
			slow, gate := f.open(dsn), testenv.NewGate(t)
			proxy.On(testenv.Contains(c.statement), 1, testenv.HoldReply(gate))
			done := make(chan error)
			go func() {
				done <- slow.DB.InTx(t.Context(), func(tx *sql.Tx) error {
					_, err := Points{Now: f.clock}.Handle(t.Context(), tx, message("m3", first, 1001, 1000, 0, 2))
					return err
				})
			}()
			gate.WaitEntered(t, 1)
			if _, err := f.handle(c.other); err != nil {
				t.Errorf("meanwhile: %v", err)
			}
			gate.Open()
			if err := <-done; err != nil {
				t.Error(err)
			}
			f.wantPoints(1001, c.want)
		})
	}
}
