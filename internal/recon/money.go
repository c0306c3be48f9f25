package recon

// moneyInvariants are those of payments, refunds and the account (contract section 6, numbers 2, 3 and 7). Dispositions of a
// trade: 0 paid its order, 1 is being returned, 2 waits for a person. States of a refund: 0 PROCESSING, 1 SUCCESS, 2 FAILED.
func moneyInvariants() []invariant {
	return []invariant{
		{"an_order_is_paid_by_one_trade", `
			SELECT order_no, CONCAT(COUNT(*), ' trades paid it') FROM t_trade WHERE disposition = 0 GROUP BY order_no HAVING COUNT(*) > 1`, nil},
		{"a_paid_order_has_its_money", `
			SELECT o.order_no, CONCAT('status ', o.status, ', amount ', o.amount, ', received ', COALESCE(SUM(t.amount), 0))
			FROM t_order o LEFT JOIN t_trade t ON t.order_no = o.order_no AND t.disposition = 0
			WHERE o.amount > 0
			GROUP BY o.order_no, o.status, o.amount
			HAVING (o.status IN (0, 4) AND COUNT(t.id) > 0) OR (o.status NOT IN (0, 4) AND COALESCE(SUM(t.amount), 0) <> o.amount)`, nil},
		{"money_that_nobody_can_use_goes_back_once", `
			SELECT CONCAT(t.channel, ' ', t.trade_no), CONCAT(COUNT(r.id), ' automatic refunds of ', COALESCE(SUM(r.amount), 0), ' for ', t.amount)
			FROM t_trade t LEFT JOIN t_refund r ON r.channel = t.channel AND r.trade_no = t.trade_no AND r.auto = 1
			WHERE t.disposition = 1
			GROUP BY t.channel, t.trade_no, t.amount
			HAVING COUNT(r.id) = 0 OR SUM(CASE WHEN r.status <> 2 THEN 1 ELSE 0 END) > 1 OR SUM(CASE WHEN r.amount <> t.amount THEN 1 ELSE 0 END) > 0`, nil},
		{"good_money_is_not_returned_automatically", `
			SELECT r.refund_no, CONCAT('returns trade ', r.trade_no, ', which paid order ', t.order_no)
			FROM t_refund r JOIN t_trade t ON t.channel = r.channel AND t.trade_no = r.trade_no WHERE r.auto = 1 AND t.disposition = 0`, nil},
		{"money_for_a_person_has_an_exception", `
			SELECT CONCAT(t.channel, ' ', t.trade_no), 'no exception' FROM t_trade t
			LEFT JOIN t_exception e ON e.subject = CONCAT(t.channel, ':', t.trade_no) AND e.kind = 'amount_mismatch'
			WHERE t.disposition = 2 AND e.id IS NULL`, nil},
		{"a_failed_automatic_refund_has_an_exception", `
			SELECT r.refund_no, 'no exception' FROM t_refund r LEFT JOIN t_exception e ON e.subject = r.refund_no
			WHERE r.auto = 1 AND r.status = 2 AND e.id IS NULL`, nil},
		{"refunds_never_exceed_the_money", `
			SELECT CONCAT(t.channel, ' ', t.trade_no), CONCAT('refunds of ', COALESCE(SUM(r.amount), 0), ' for ', t.amount, ', reserved ', t.refund_reserved)
			FROM t_trade t LEFT JOIN t_refund r ON r.channel = t.channel AND r.trade_no = t.trade_no AND r.status <> 2
			GROUP BY t.channel, t.trade_no, t.amount, t.refund_reserved
			HAVING COALESCE(SUM(r.amount), 0) > t.amount OR COALESCE(SUM(r.amount), 0) <> t.refund_reserved`, nil},
		{"a_refund_returns_money_that_came", `
			SELECT r.refund_no, CONCAT('no trade ', r.trade_no) FROM t_refund r
			LEFT JOIN t_trade t ON t.channel = r.channel AND t.trade_no = r.trade_no WHERE t.id IS NULL`, nil},
		{"orders_count_their_refunds", `
			SELECT o.order_no, CONCAT('counts ', o.refunded_amount, ', its refunds are ', COALESCE(SUM(r.amount), 0))
			FROM t_order o LEFT JOIN t_trade t ON t.order_no = o.order_no AND t.disposition = 0
			LEFT JOIN t_refund r ON r.channel = t.channel AND r.trade_no = t.trade_no AND r.status = 1
			GROUP BY o.order_no, o.refunded_amount HAVING COALESCE(SUM(r.amount), 0) <> o.refunded_amount`, nil},
		{"payments_count_their_refunds", `
			SELECT p.pay_no, CONCAT('counts ', p.refunded_amount, ', its refunds are ', COALESCE(SUM(r.amount), 0))
			FROM t_payment p LEFT JOIN t_refund r ON r.pay_no = p.pay_no AND r.status = 1
			GROUP BY p.pay_no, p.refunded_amount HAVING COALESCE(SUM(r.amount), 0) <> p.refunded_amount`, nil},
		{"refunded_means_all_of_it", `
			SELECT order_no, CONCAT('status ', status, ', refunded ', refunded_amount, ' of ', amount) FROM t_order
			WHERE amount > 0 AND ((status = 6 AND refunded_amount <> amount) OR (status NOT IN (5, 6) AND refunded_amount = amount))`, nil},
		{"postings_sum_to_zero", `
			SELECT CONCAT(cause, ' ', kind), CONCAT('sum ', SUM(amount), ' in ', COUNT(*), ' entries') FROM t_ledger_entry
			GROUP BY cause, kind, currency HAVING SUM(amount) <> 0 OR COUNT(*) <> 2`, nil},
		{"the_account_equals_paid_less_refunded", `
			SELECT channel, CONCAT('trades less refunds less the account are ', SUM(amount), ' ', currency)
			FROM (SELECT channel, currency, amount FROM t_trade
				UNION ALL SELECT channel, currency, -amount FROM t_refund WHERE status = 1
				UNION ALL SELECT SUBSTRING(account, 9), currency, -amount FROM t_ledger_entry WHERE account LIKE 'channel:%') m
			GROUP BY channel, currency HAVING SUM(amount) <> 0`, nil},
		{"a_payment_is_open_once_per_channel", `
			SELECT order_no, CONCAT(COUNT(*), ' open attempts on ', channel) FROM t_payment WHERE status IN (0, 1, 2) GROUP BY order_no, channel HAVING COUNT(*) > 1`, nil},
		{"an_unknown_payment_is_watched_or_an_exception", `
			SELECT p.pay_no, CONCAT('status ', p.status, ', no next look, no exception') FROM t_payment p
			LEFT JOIN t_exception e ON e.kind = 'payment_unresolved' AND e.subject = p.pay_no
			WHERE p.status IN (0, 1, 2) AND p.next_poll_at IS NULL AND e.id IS NULL`, nil},
		{"a_pending_refund_is_watched_or_an_exception", `
			SELECT r.refund_no, 'no next look, no exception' FROM t_refund r
			LEFT JOIN t_exception e ON e.kind = 'refund_unresolved' AND e.subject = r.refund_no
			WHERE r.status = 0 AND r.next_poll_at IS NULL AND e.id IS NULL`, nil},
		{"a_success_has_its_trade", `
			SELECT p.pay_no, CONCAT('trade ', p.trade_no, ' is not recorded') FROM t_payment p
			LEFT JOIN t_trade t ON t.channel = p.channel AND t.trade_no = p.trade_no AND t.pay_no = p.pay_no
			WHERE p.status = 3 AND t.id IS NULL`, nil},
		{"an_applied_success_notice_has_its_trade", `
			SELECT n.id, CONCAT('trade ', n.trade_no, ' is not recorded') FROM t_channel_notice n
			LEFT JOIN t_trade t ON t.channel = n.channel AND t.trade_no = n.trade_no
			WHERE n.event = 'payment.succeeded' AND n.status IN (1, 2) AND t.id IS NULL`, nil},
	}
}
