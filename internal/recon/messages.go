package recon

import (
	"time"

	"example.com/oncepay/internal/outbox"
)

// consumedWithin is how old a message may be before each of its consumers has recorded it (contract section 6, number 9).
const consumedWithin = time.Minute

// messageInvariants are those of messages and their consumers (contract section 6, number 9). States of t_message_dedup: 0
// processing, 1 done, 2 waiting for its next try, 3 dead, 4 discarded. What is being tried again is in work, as long as somebody
// does: its next try is not a minute overdue.
func messageInvariants(now time.Time) []invariant {
	late, kept := now.Add(-consumedWithin), now.Add(-outbox.Retention)
	return []invariant{
		{"every_message_reaches_its_consumers", `
			SELECT x.msg_id, CONCAT(s.consumer, ' has not recorded it')
			FROM t_outbox x JOIN t_subscription s ON s.topic = x.topic AND s.since_time <= x.create_time
			LEFT JOIN t_message_dedup d ON d.consumer = s.consumer AND d.msg_id = x.msg_id
			WHERE x.create_time < ? AND d.id IS NULL`, []any{late}},
		{"no_message_is_left_half_done", `
			SELECT msg_id, CONCAT(consumer, ' should have tried it again at ', COALESCE(next_try_at, 'no time'))
			FROM t_message_dedup WHERE status IN (0, 2) AND (next_try_at IS NULL OR next_try_at < ?)`, []any{late}},
		{"every_refund_owes_one_message", `
			SELECT order_no, CONCAT('refunds booked less messages of ', topic, ' are ', SUM(n)) FROM (
				SELECT order_no, CASE kind WHEN 'refund' THEN 'refund.succeeded' ELSE 'refund.undone' END AS topic, COUNT(DISTINCT cause) AS n
				FROM t_ledger_entry WHERE kind IN ('refund', 'refund_undo') AND create_time > ? GROUP BY order_no, kind
				UNION ALL SELECT partition_key, topic, -COUNT(*) FROM t_outbox
				WHERE topic IN ('refund.succeeded', 'refund.undone') AND create_time > ? GROUP BY partition_key, topic) m
			GROUP BY order_no, topic HAVING SUM(n) <> 0`, []any{kept, kept}},
		{"a_dead_letter_has_an_exception", `
			SELECT d.msg_id, CONCAT('dead for ', d.consumer, ', no exception') FROM t_message_dedup d
			LEFT JOIN t_exception e ON e.kind = 'dead_letter' AND e.subject = CONCAT(d.consumer, ':', d.msg_id)
			WHERE d.status = 3 AND e.id IS NULL`, nil},
	}
}

// grantInvariants are those of coupons and points (contract section 6, number 5). States of a coupon: 0 UNUSED, 1 USED, 2 VOID;
// of an order that has ended without a sale: 4 CANCELLED, 6 REFUNDED.
func grantInvariants() []invariant {
	return []invariant{
		{"a_coupon_is_granted_once", `
			SELECT activity_id, CONCAT(COUNT(*), ' coupons for user ', user_id) FROM t_coupon WHERE activity_id <> ''
			GROUP BY activity_id, user_id HAVING COUNT(*) > 1`, nil},
		{"activities_count_their_coupons", `
			SELECT a.activity_id, CONCAT('counts ', a.coupon_granted, ' of ', a.coupon_limit, ', there are ', COUNT(c.id))
			FROM t_activity a LEFT JOIN t_coupon c ON c.activity_id = a.activity_id
			GROUP BY a.activity_id, a.coupon_granted, a.coupon_limit HAVING COUNT(c.id) <> a.coupon_granted OR COUNT(c.id) > a.coupon_limit`, nil},
		{"a_coupon_is_used_by_one_living_order", `
			SELECT o.order_no, CONCAT('its coupon ', o.coupon_no, ' has status ', COALESCE(c.status, 'none'), ' and order ', COALESCE(c.order_no, 'none'))
			FROM t_order o LEFT JOIN t_coupon c ON c.coupon_no = o.coupon_no
			WHERE o.coupon_no <> '' AND o.status NOT IN (4, 6) AND (c.id IS NULL OR c.status <> 1 OR c.order_no <> o.order_no)`, nil},
		{"a_used_coupon_has_its_order", `
			SELECT c.coupon_no, CONCAT('status ', c.status, ', order ', c.order_no, ' is ', COALESCE(o.status, 'not there'))
			FROM t_coupon c LEFT JOIN t_order o ON o.order_no = c.order_no AND o.coupon_no = c.coupon_no AND o.user_id = c.user_id
			WHERE (c.status = 1 AND (o.id IS NULL OR o.status IN (4, 6))) OR (c.status <> 1 AND c.order_no <> '')`, nil},
		{"a_balance_is_the_sum_of_its_entries", `
			SELECT user_id, CONCAT('balance less entries is ', SUM(points)) FROM (
				SELECT user_id, balance AS points FROM t_point_account UNION ALL SELECT user_id, -delta FROM t_point_entry) p
			GROUP BY user_id HAVING SUM(points) <> 0`, nil},
		{"an_orders_points_are_the_sum_of_its_entries", `
			SELECT order_no, CONCAT('points less entries are ', SUM(points)) FROM (
				SELECT order_no, points FROM t_order_points UNION ALL SELECT order_no, -delta FROM t_point_entry WHERE kind = 'order') p
			GROUP BY order_no HAVING SUM(points) <> 0`, nil},
		{"a_redemption_has_its_coupon", `
			SELECT user_id, CONCAT('redemptions less coupons bought are ', SUM(n)) FROM (
				SELECT user_id, 1 AS n FROM t_point_entry WHERE kind = 'redeem' UNION ALL SELECT user_id, -1 FROM t_coupon WHERE activity_id = '') r
			GROUP BY user_id HAVING SUM(n) <> 0`, nil},
		{"a_consumed_message_has_counted", `
			SELECT d.msg_key, CONCAT(d.topic, ' is consumed, and the points are of change ', COALESCE(p.refund_seq, 'none'))
			FROM t_message_dedup d JOIN t_outbox x ON x.msg_id = d.msg_id LEFT JOIN t_order_points p ON p.order_no = d.msg_key
			WHERE d.consumer = 'points' AND d.status = 1
				AND ((d.topic = 'order.paid' AND p.order_no IS NULL) OR (d.topic <> 'order.paid' AND x.version > COALESCE(p.refund_seq, -1)))`, nil},
		{"points_follow_the_money", `
			SELECT p.order_no, CONCAT('has ', p.points, ' points at change ', p.refund_seq, ', its money is ',
				COALESCE(CONCAT(o.amount, ' less ', o.refunded_amount, ' at change ', o.refund_seq), 'nowhere'))
			FROM t_order_points p LEFT JOIN t_order o ON o.order_no = p.order_no AND o.user_id = p.user_id
			WHERE o.id IS NULL OR p.refund_seq > o.refund_seq OR (p.refund_seq = o.refund_seq AND p.points <> (o.amount - o.refunded_amount) DIV 100)`, nil},
	}
}
