package recon

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/activity"
	"example.com/oncepay/internal/dedup"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/grant"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/order"
)

func keyOf(user int64, value string) idemkey.Key {
	return idemkey.Key{Caller: user, Value: value, Operation: "x", Fingerprint: "v1:x"}
}

// grants lets user 1001 use one coupon for a living order and give one back, 1002 keep one, and the consumers hear of all that
// happened.
func grants(t *testing.T, c *Checker, orders *order.Service) {
	t.Helper()
	ctx := t.Context()
	sale := activity.Activity{
		ID: "sale", Title: "sale", StartsAt: now().Add(-time.Hour), EndsAt: now().Add(time.Hour),
		Coupon: &activity.Coupon{Template: "t", Discount: 50, Limit: 3},
	}
	again := sale
	again.ID = "sale-2"
	number := 0
	g := &grant.Service{
		DB: c.DB, Keys: orders.Keys, Metrics: orders.Metrics, Now: now, NewCode: grant.NewCode,
		NewCouponNo: func() (string, error) { number++; return fmt.Sprintf("c%031d", number), nil },
	}
	for _, a := range []activity.Activity{sale, again} {
		_, put := (&activity.Store{DB: c.DB, Now: now}).Put(ctx, a)
		_, claim := g.Claim(ctx, 1001, a.ID, keyOf(1001, "key-of-coupon-"+a.ID))
		if err := errors.Join(put, claim); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Claim(ctx, 1002, "sale", keyOf(1002, "key-of-coupon-sale")); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 2; i++ {
		a, err := orders.Create(ctx, order.CreateInput{
			UserID: 1001, SKUID: 1, Quantity: 3, CouponNo: fmt.Sprintf("c%031d", i), Key: keyOf(1001, fmt.Sprintf("key-of-coupon-order-%d", i)),
		})
		if err != nil || a.Status != 201 {
			t.Fatalf("%s, %v", a.Body, err)
		}
		if i == 2 {
			(&world{t: t, db: c.DB, orders: orders}).cancel(strings.TrimPrefix(a.Location, "/v1/orders/"))
		}
	}
	later := func() time.Time { return now().Add(time.Minute) }
	messages := &dedup.Service{
		DB: c.DB, Now: later, Metrics: orders.Metrics, Log: slog.New(slog.DiscardHandler), Lease: time.Minute,
		Exceptions: &exception.Store{DB: c.DB, Metrics: orders.Metrics, Now: later},
		Consumers: []dedup.Consumer{{
			Name: "points", Topics: []string{"order.paid", "refund.succeeded", "refund.undone"}, Handle: grant.Points{Now: later}.Handle,
		}},
	}
	for _, topic := range messages.Consumers[0].Topics {
		exec(t, c, "INSERT INTO t_subscription (consumer, topic, since_time) VALUES ('points', ?, ?)", topic, now())
	}
	if err := messages.Rescue(ctx); err != nil {
		t.Fatal(err)
	}
}

// grantFaults plants one violation of each invariant of coupons, points and messages, and of nothing else.
func grantFaults(one func(query string, of ...order.Status) fault) map[string]fault {
	const minuteAgo = "TIMESTAMP '2026-05-01 11:58:59'"
	used := "c" + strings.Repeat("0", 30) + "1"
	return map[string]fault{
		"every_message_reaches_its_consumers": func(t *testing.T, c *Checker, o map[order.Status]string) {
			exec(t, c, "UPDATE t_subscription SET since_time = "+minuteAgo)
			exec(t, c, "UPDATE t_outbox SET create_time = "+minuteAgo+" WHERE topic = 'order.paid' AND partition_key = ?", o[order.Finished])
			exec(t, c, "DELETE FROM t_message_dedup WHERE topic = 'order.paid' AND msg_key = ?", o[order.Finished])
		},
		"no_message_is_left_half_done":   one("UPDATE t_message_dedup SET status = 2, next_try_at = "+minuteAgo+" WHERE topic = 'order.paid' AND msg_key = ?", order.Finished),
		"every_refund_owes_one_message":  one("DELETE FROM t_outbox WHERE topic = 'refund.succeeded' AND partition_key = ?", order.Refunded),
		"a_dead_letter_has_an_exception": one("UPDATE t_message_dedup SET status = 3 WHERE topic = 'order.paid' AND msg_key = ?", order.Finished),
		"a_coupon_is_granted_once": func(t *testing.T, c *Checker, _ map[order.Status]string) {
			exec(t, c, "UPDATE t_coupon SET user_id = 1001 WHERE user_id = 1002")
		},
		"activities_count_their_coupons":              one("UPDATE t_activity SET coupon_granted = coupon_granted - 1 WHERE activity_id = 'sale'"),
		"a_coupon_is_used_by_one_living_order":        one("UPDATE t_order SET coupon_no = '"+used+"' WHERE order_no = ?", order.Finished),
		"a_used_coupon_has_its_order":                 one("UPDATE t_coupon SET order_no = ? WHERE status = 0 AND user_id = 1002", order.Finished),
		"a_balance_is_the_sum_of_its_entries":         one("UPDATE t_point_account SET balance = balance + 1"),
		"an_orders_points_are_the_sum_of_its_entries": one("UPDATE t_point_entry SET order_no = 'elsewhere' WHERE order_no = ?", order.Finished),
		"a_redemption_has_its_coupon": func(t *testing.T, c *Checker, _ map[order.Status]string) {
			exec(t, c, "UPDATE t_coupon SET activity_id = '', grant_key = 'x' WHERE user_id = 1002")
			exec(t, c, "UPDATE t_activity SET coupon_granted = coupon_granted - 1 WHERE activity_id = 'sale'")
		},
		"a_consumed_message_has_counted": func(t *testing.T, c *Checker, o map[order.Status]string) {
			exec(t, c, "DELETE FROM t_order_points WHERE order_no = ?", o[order.Finished])
			exec(t, c, "UPDATE t_point_account SET balance = balance - 3")
			exec(t, c, "DELETE FROM t_point_entry WHERE order_no = ?", o[order.Finished])
		},
		"points_follow_the_money": func(t *testing.T, c *Checker, o map[order.Status]string) {
			exec(t, c, "UPDATE t_order_points SET points = points + 1 WHERE order_no = ?", o[order.Finished])
			exec(t, c, "UPDATE t_point_entry SET delta = delta + 1 WHERE order_no = ?", o[order.Finished])
			exec(t, c, "UPDATE t_point_account SET balance = balance + 1")
		},
	}
}

// More ways to break the same rules.
func TestFurtherFaultsOfGrantsAreNamed(t *testing.T) {
	wantNamed(t, map[string]further{
		"more than the limit":       {"activities_count_their_coupons", "UPDATE t_activity SET coupon_limit = 1 WHERE ? <> '' AND activity_id = 'sale'", order.Paid},
		"used without an order":     {"a_used_coupon_has_its_order", "UPDATE t_coupon SET status = 1 WHERE ? <> '' AND user_id = 1002", order.Paid},
		"used by a dead order":      {"a_used_coupon_has_its_order", "UPDATE t_coupon SET status = 1, order_no = (SELECT order_no FROM t_order WHERE ? <> '' AND coupon_no <> '' AND status = 4) WHERE coupon_no LIKE '%2'", order.Paid},
		"a living order lost it":    {"a_coupon_is_used_by_one_living_order", "UPDATE t_coupon SET status = 0, order_no = '' WHERE ? <> ''", order.Paid},
		"entries, no account":       {"a_balance_is_the_sum_of_its_entries", "DELETE FROM t_point_account WHERE ? <> ''", order.Paid},
		"points of no order":        {"points_follow_the_money", "UPDATE t_order_points SET order_no = 'nowhere' WHERE order_no = ?", order.Paid},
		"points of another's":       {"points_follow_the_money", "UPDATE t_order_points SET user_id = 9 WHERE order_no = ?", order.Paid},
		"a claw-back was lost":      {"a_consumed_message_has_counted", "UPDATE t_order_points SET refund_seq = 0, points = 3 WHERE order_no = ?", order.Refunded},
		"a refund told twice":       {"every_refund_owes_one_message", "INSERT INTO t_outbox (msg_id, topic, partition_key, version, payload, create_time) VALUES ('planted', 'refund.succeeded', ?, 1, '{}', NOW())", order.Refunded},
		"a claim nobody takes over": {"no_message_is_left_half_done", "UPDATE t_message_dedup SET status = 0, next_try_at = NULL WHERE msg_key = ?", order.Paid},
	})
}
