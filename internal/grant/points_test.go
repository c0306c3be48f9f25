package grant

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/oncepay/internal/activity"
	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

// told is a message and what it should come to.
type told struct {
	m       outbox.Stored
	outcome string
	balance int64
}

func (f *fixture) tell(order string, steps ...told) {
	f.t.Helper()
	for _, s := range steps {
		s.m.Key = order
		if outcome, err := f.handle(s.m); err != nil || outcome != s.outcome {
			f.t.Errorf("%s: %q, %v; want %s", s.m.ID, outcome, err, s.outcome)
		}
		f.wantPoints(1001, s.balance)
	}
}

func TestAnOrderEarnsAPointForEachFullHundredThatStays(t *testing.T) {
	f := newFixture(t)
	a, b, c := orderNo(1), orderNo(2), orderNo(3)
	f.tell(a,
		told{message("a0", a, 1001, 1999, 0, 0), "applied", 19},
		told{message("a0", a, 1001, 1999, 0, 0), "stale", 19}, // the consumer's own record stops this before
		told{message("a1", a, 1001, 1999, 99, 1), "applied", 19},
		told{message("a2", a, 1001, 1999, 100, 2), "applied", 18},
		told{message("a4", a, 1001, 1999, 1999, 4), "applied", 0},
		told{message("a3", a, 1001, 1999, 150, 3), "stale", 0},    // overtaken
		told{message("a5", a, 1001, 1999, 100, 5), "applied", 18}, // a refund was undone
	)
	f.tell(b, // the refund is heard of before the payment
		told{message("b1", b, 1001, 500, 500, 1), "applied", 18},
		told{message("b0", b, 1001, 500, 0, 0), "stale", 18},
		told{message("b2", b, 1001, 500, 0, 2), "applied", 23},
	)
	f.tell(c,
		told{message("c0", c, 1001, 0, 0, 0), "applied", 23}, // a free order
		told{message("c-", c, 1001, 500, 500, -1), "ignored", 23},
	)
	if n := f.count("SELECT COUNT(*) FROM t_point_entry"); n != 5 {
		t.Errorf("%d entries, want one for each change", n)
	}
}

// Messages of many orders, each with refunds and undone refunds, shuffled and repeated, handled by ten at once: the balance is
// what the newest word about each order says.
func TestPointsAreExactInWhateverOrderMessagesCome(t *testing.T) {
	f := newFixture(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	want := map[int64]int64{}
	var all []outbox.Stored
	for n := range 30 {
		user, paid, refunded := int64(1001+n%3), r.Int64N(3000), int64(0)
		last := r.IntN(6)
		for seq := range last + 1 {
			if seq > 0 {
				refunded = r.Int64N(paid + 1) // less than before: a refund was undone
			}
			m := message(fmt.Sprintf("m%d:%d", n, seq), orderNo(n), user, paid, refunded, seq)
			all = append(all, slices.Repeat([]outbox.Stored{m}, 1+r.IntN(3))...)
		}
		want[user] += (paid - refunded) / 100
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	testenv.Together(10, func(worker int) {
		for i := worker; i < len(all); i += 10 {
			if outcome, err := f.handle(all[i]); err != nil || outcome != "applied" && outcome != "stale" {
				t.Errorf("%s: %q, %v", all[i].ID, outcome, err)
			}
		}
	})
	for user, points := range want {
		f.wantPoints(user, points)
	}
	if n := f.count(`SELECT COUNT(*) FROM t_order_points o WHERE points <>
		(SELECT COALESCE(SUM(delta), 0) FROM t_point_entry e WHERE e.order_no = o.order_no)`); n != 0 {
		t.Errorf("%d orders' entries do not sum up to their points", n)
	}
}

// A message that lacks something is a fault, not "no points"; nothing of it stays.
func TestAPayloadThatSaysTooLittleIsAFault(t *testing.T) {
	f := newFixture(t)
	for name, payload := range map[string]string{
		"no JSON": `{`, "no order": `{"user_id":1,"paid":100,"refunded":0,"refund_seq":0}`, "no user": `{"order_no":"1","paid":100,"refunded":0,"refund_seq":0}`,
		"no paid": `{"order_no":"1","user_id":1,"refunded":0,"refund_seq":0}`, "no refunded": `{"order_no":"1","user_id":1,"paid":100,"refund_seq":0}`,
		"no seq":     `{"order_no":"1","user_id":1,"paid":100,"refunded":0}`,
		"negative":   `{"order_no":"1","user_id":1,"paid":100,"refunded":-100,"refund_seq":0}`,
		"too much":   `{"order_no":"1","user_id":1,"paid":100,"refunded":101,"refund_seq":1}`,
		"no number":  `{"order_no":"1","user_id":1,"paid":"100","refunded":0,"refund_seq":0}`,
		"wrong user": `{"order_no":"1","user_id":0,"paid":100,"refunded":0,"refund_seq":0}`,
	} {
		if outcome, err := f.handle(outbox.Stored{ID: "m1", Payload: []byte(payload)}); err == nil || outcome != "" {
			t.Errorf("%s: %q, %v", name, outcome, err)
		}
	}
	if n := f.count("SELECT COUNT(*) FROM t_order_points"); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// A cause changes points once: if all else failed, the entry's unique index undoes the rest.
func TestAMessageThatChangedPointsCannotChangeThemAgain(t *testing.T) {
	f := newFixture(t)
	f.earn(1001, 5)
	if _, err := f.DB.ExecContext(t.Context(), "DELETE FROM t_order_points"); err != nil {
		t.Fatal(err)
	}
	no := fmt.Sprintf("%032d", 1)
	if _, err := f.handle(message("m:"+no, no, 1001, 500, 0, 0)); !errors.Is(err, errRepeated) {
		t.Errorf("%v", err)
	}
	f.wantPoints(1001, 5)
	if n := f.count("SELECT COUNT(*) FROM t_order_points"); n != 0 {
		t.Errorf("%d rows are left of what was rolled back", n)
	}
}

// B102: points for one coupon, twenty redemptions at once: one 201, and nothing is left of the others.
func TestTwentyRedemptionsWithPointsForOne(t *testing.T) {
	f := newFixture(t)
	f.earn(1001, RedemptionPrice)
	answers := make([]answer, 20)
	testenv.Together(len(answers), func(i int) { answers[i] = f.redeem(1001, fmt.Sprint("K", i), "ten-off") })
	created := 0
	for _, a := range answers {
		if a.Code == http.StatusCreated {
			created++
		} else {
			a.want(t, http.StatusConflict, "points_insufficient")
		}
	}
	if created != 1 {
		t.Errorf("%d redemptions", created)
	}
	f.wantPoints(1001, 0)
	f.wantCoupons("", 1)
}

// One redemption twenty times at once under one key is one; so it is on an instance that keeps no records of keys.
func TestOneKeyRedeemsOnce(t *testing.T) {
	f := newFixture(t)
	f.earn(1001, 5*RedemptionPrice)
	unguarded := f.open(f.dsn)
	unguarded.Keys.Disabled = true
	for key, router := range map[string]http.Handler{"K1": f.router, "K2": routes(unguarded)} {
		numbers := make([]string, 20)
		testenv.Together(len(numbers), func(i int) {
			a := do(router, 1001, http.MethodPost, "/v1/points/redemptions", key, `{"points":100,"coupon_template":"x"}`)
			if numbers[i] = a.body.Coupon.CouponNo; a.Code != http.StatusCreated || a.body.RedemptionNo != "pr1:1001:"+key+strings.Repeat("-", 20) {
				t.Errorf("%d %s", a.Code, a.Body)
			}
		})
		if len(slices.Compact(numbers)) != 1 {
			t.Errorf("%s: coupons %v", key, numbers)
		}
	}
	f.wantPoints(1001, 3*RedemptionPrice)
	f.wantCoupons("", 2)
}

// Past the key's retention a repeat finds its coupon, though there are no points left for another; other contents are refused.
func TestARedemptionIsFoundAfterItsKeyHasExpired(t *testing.T) {
	f := newFixture(t)
	f.earn(1001, 150)
	first := f.redeem(1001, "K1", "x")
	const want = `{"redemption_no":"pr1:1001:K1--------------------","points":100,"balance":50,` +
		`"coupon":{"coupon_no":"00000000000000000000000000000002","activity_id":null,"template":"x","discount":100,` +
		`"status":"UNUSED","order_no":null,"created_at":"2026-05-01T12:00:00Z"}}` + "\n"
	if first.Code != http.StatusCreated || first.Body.String() != want || first.Header().Get("Location") != "/v1/me/coupons" {
		t.Errorf("%d %s", first.Code, first.Body)
	}
	f.advance(retention)
	f.redeem(1001, "K1", "y").want(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
	if again := f.redeem(1001, "K1", "x"); again.Code != http.StatusCreated || again.Body.String() != want {
		t.Errorf("%d %s", again.Code, again.Body)
	}
	if n := testutil.ToFloat64(f.Metrics.GuardHits(apperr.LayerUniqueIndex, opRedeem, metrics.Replayed)); n != 2 {
		t.Errorf("%v repeats counted, want 2", n)
	}
	f.redeem(1002, "K1", "x").want(t, http.StatusConflict, "points_insufficient") // another's key is another redemption
	f.wantPoints(1001, 50)
	f.wantCoupons("", 1)
}

// Points that were spent are owed when their order is refunded, and nothing can be redeemed until they are earned again.
func TestSpentPointsAreTakenBack(t *testing.T) {
	f := newFixture(t)
	no := orderNo(1)
	steps := []told{{message("m0", no, 1001, 20000, 0, 0), "applied", 200}, {message("m1", no, 1001, 20000, 15000, 1), "applied", -50}}
	f.tell(no, steps[0])
	f.redeem(1001, "K1", "x").want(t, http.StatusCreated, "")
	f.wantPoints(1001, 100)
	f.tell(no, steps[1])
	f.redeem(1001, "K2", "x").want(t, http.StatusConflict, "points_insufficient")
	f.earn(1001, 149)
	f.redeem(1001, "K3", "x").want(t, http.StatusConflict, "points_insufficient")
	f.earn(1001, 1)
	f.redeem(1001, "K4", "x").want(t, http.StatusCreated, "")
	f.wantPoints(1001, 0)
}

// A template is worth what the activity that was put last says, and one minor unit a point if none does. Case matters (B21).
func TestATemplateIsWorthWhatItsActivitySays(t *testing.T) {
	f := newFixture(t)
	f.earn(1001, 500)
	store := &activity.Store{DB: f.DB, Now: f.clock}
	for _, c := range []struct {
		id       string
		discount money.Amount // 0: the activity grants no coupon any more
		want     int64
	}{{"", 0, 100}, {"b", 7, 7}, {"a", 30, 30}, {"b", 8, 8}, {"b", 0, 30}} {
		f.advance(time.Second)
		a := activity.Activity{ID: c.id, Title: "sale", StartsAt: f.clock(), EndsAt: f.clock().Add(time.Hour)}
		if c.discount > 0 {
			a.Coupon = &activity.Coupon{Template: "Half", Discount: c.discount, Limit: 1}
		}
		if c.id != "" {
			if _, err := store.Put(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
		if a := f.redeem(1001, fmt.Sprint("K", f.number()), "Half"); a.body.Coupon.Discount != c.want {
			t.Errorf("%+v: %s", c, a.Body)
		}
	}
	f.earn(1001, 100)
	if a := f.redeem(1001, "K", "half"); a.body.Coupon.Discount != 100 {
		t.Errorf("another template: %s", a.Body)
	}
}

func TestRedemptionsAreRefused(t *testing.T) {
	f := newFixture(t)
	f.earn(1001, 500)
	for body, code := range map[string]string{
		`{"points":99,"coupon_template":"x"}`: "points_invalid", `{"points":200,"coupon_template":"x"}`: "points_invalid",
		`{"points":-100,"coupon_template":"x"}`: "points_invalid", `{"coupon_template":"x"}`: "points_invalid",
		`{"points":"100","coupon_template":"x"}`: "body_invalid", `{"points":100.0,"coupon_template":"x"}`: "body_invalid",
		`{"points":100}`: "template_invalid", `{"points":100,"coupon_template":"a b"}`: "template_invalid",
		`{"points":100,"coupon_template":"` + strings.Repeat("x", 65) + `"}`: "template_invalid",
		`{"points":100,"coupon_template":"x","balance":1}`:                   "body_invalid",
	} {
		do(f.router, 1001, http.MethodPost, "/v1/points/redemptions", "K1", body).want(t, http.StatusBadRequest, code)
	}
	f.redeem(1001, "", "x").want(t, http.StatusBadRequest, "idempotency_key_required")
	f.redeem(1001, "K1", strings.Repeat("x", 64)).want(t, http.StatusCreated, "") // B14; the key is as good as new
	f.wantPoints(1001, 400)
}

func TestAPersonSeesTheirPoints(t *testing.T) {
	f := newFixture(t)
	if a := f.get(1001, "/v1/me/points"); a.Body.String() != `{"balance":0,"data":[],"next_cursor":""}`+"\n" {
		t.Errorf("without points: %s", a.Body)
	}
	f.earn(1001, 70)
	f.earn(1002, 1)
	f.earn(1001, 80)
	f.redeem(1001, "K1", "x")
	a := f.get(1001, "/v1/me/points?limit=2")
	d := a.body.Data
	if a.body.Balance != 50 || len(d) != 2 || d[0].Delta != -100 || d[0].Kind != "redeem" || d[0].OrderNo != nil || !strings.HasPrefix(d[0].Cause, "pr1:1001:K1") ||
		d[1].Delta != 80 || d[1].Kind != "order" || d[1].OrderNo == nil || d[1].Cause != "m:"+*d[1].OrderNo {
		t.Errorf("first page %s", a.Body)
	}
	a = f.get(1001, "/v1/me/points?limit=2&cursor="+a.body.NextCursor)
	if d := a.body.Data; a.body.Balance != 50 || len(d) != 1 || d[0].Delta != 70 || a.body.NextCursor != "" {
		t.Errorf("second page %s", a.Body)
	}
	f.get(1001, "/v1/me/points?cursor=x").want(t, http.StatusBadRequest, "cursor_invalid")
}
