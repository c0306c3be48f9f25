package recon

import (
	"database/sql"
	"log/slog"
	"testing"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/lock"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/payment"
)

// channel is a payment channel that is only ever heard of, never called.
type channel struct {
	payment.Channel
	name string
}

func (c channel) Name() string     { return c.name }
func (c channel) Merchant() string { return "m" }

func newPayments(c *Checker, orders *order.Service, m *metrics.Metrics) *payment.Service {
	return &payment.Service{
		DB: c.DB, Keys: orders.Keys, Locks: lock.None{}, Orders: orders, Exceptions: &exception.Store{DB: c.DB, Metrics: m, Now: now}, Metrics: m,
		Log: slog.New(slog.DiscardHandler), Now: now, Wake: func() {},
		Channels: payment.Channels{"mockpay": channel{name: "mockpay"}, "mockpay2": channel{name: "mockpay2"}},
	}
}

// world takes orders over 300 on their ways, with the money that belongs to each, through the code of the service.
type world struct {
	t        *testing.T
	db       *mysqldb.DB
	orders   *order.Service
	payments *payment.Service
}

func (w *world) inTx(f func(tx *sql.Tx) error) {
	w.t.Helper()
	if err := w.db.InTx(w.t.Context(), f); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) fact(f payment.Fact) {
	w.t.Helper()
	f.Merchant, f.Currency, f.Source = "m", "CNY", "notice"
	w.inTx(func(tx *sql.Tx) error { _, err := w.payments.Apply(w.t.Context(), tx, f); return err })
}

// payNo is the number of an order's attempt on a channel.
func payNo(no, channel string) string { return channel[len(channel)-1:] + no[1:] }

// attempt opens an attempt on a channel.
func (w *world) attempt(no, channel string) {
	w.t.Helper()
	w.inTx(func(tx *sql.Tx) error {
		_, err := tx.Exec(`INSERT INTO t_payment (pay_no, order_no, user_id, channel, amount, currency, status, open_key, next_poll_at, create_time, update_time)
			VALUES (?, ?, 1001, ?, 300, 'CNY', 1, ?, ?, ?, ?)`, payNo(no, channel), no, channel, no+channel, now(), now(), now())
		return err
	})
}

// money lets an attempt on a channel bring an amount.
func (w *world) money(no, channel string, amount money.Amount) {
	w.t.Helper()
	w.attempt(no, channel)
	w.fact(payment.Fact{Event: payment.EventPaid, Channel: channel, PayNo: payNo(no, channel), TradeNo: "T" + no, Amount: amount})
}

// decided lets a channel decide a refund.
func (w *world) decided(event payment.Event, no, channel, refundNo string, amount money.Amount) {
	w.t.Helper()
	w.fact(payment.Fact{Event: event, Channel: channel, PayNo: payNo(no, channel), TradeNo: "T" + no, RefundNo: refundNo, Amount: amount})
}

func (w *world) refund(no string, amount money.Amount) {
	w.t.Helper()
	_, err := w.payments.RequestRefund(w.t.Context(), payment.RefundInput{
		OrderNo: no, RefundNo: "R-" + no, Amount: amount, Reason: "test", By: by(),
		Key: idemkey.Key{Caller: 1001, Value: "key-of-refund-" + no, Operation: "refund.create", Fingerprint: "v1:x"},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func by() auth.Caller { return auth.Caller{UserID: 1001} }

// The steps on an order's way.

func (w *world) ship(no string) {
	w.inTx(func(tx *sql.Tx) error { _, err := w.orders.Ship(w.t.Context(), tx, no, by()); return err })
}

func (w *world) finish(no string) {
	w.inTx(func(tx *sql.Tx) error { _, err := w.orders.Finish(w.t.Context(), tx, no, by()); return err })
}

func (w *world) cancel(no string) {
	w.inTx(func(tx *sql.Tx) error { _, err := w.orders.Cancel(w.t.Context(), tx, no, by()); return err })
}

func (w *world) pay(no string)         { w.money(no, "mockpay", 300) }
func (w *world) payAgain(no string)    { w.attempt(no, "mockpay2") }
func (w *world) wrongMoney(no string)  { w.money(no, "mockpay", 299) }
func (w *world) doubleMoney(no string) { w.money(no, "mockpay2", 300) }

func (w *world) doubleMoneyStays(no string) {
	w.money(no, "mockpay2", 300)
	w.decided(payment.EventRefundFailed, no, "mockpay2", "ra1:mockpay2:T"+no, 300)
}

func (w *world) lateMoney(no string) {
	w.money(no, "mockpay", 300)
	w.decided(payment.EventRefunded, no, "mockpay", "ra1:mockpay:T"+no, 300)
}

func (w *world) refundPart(no string) {
	w.refund(no, 100)
	w.decided(payment.EventRefunded, no, "mockpay", "R-"+no, 100)
}

func (w *world) refundAll(no string) { w.refund(no, 300) }
func (w *world) refunded(no string)  { w.decided(payment.EventRefunded, no, "mockpay", "R-"+no, 300) }

// moneyFaults plants one violation of each invariant of money, and of nothing else.
func moneyFaults(one func(query string, of ...order.Status) fault) map[string]fault {
	// all runs several plants as one.
	all := func(plants ...fault) fault {
		return func(t *testing.T, c *Checker, o map[order.Status]string) {
			for _, plant := range plants {
				plant(t, c, o)
			}
		}
	}
	return map[string]fault{
		"an_order_is_paid_by_one_trade": one(`
			INSERT INTO t_trade (channel, trade_no, pay_no, order_no, amount, currency, disposition, source, occurred_at, create_time)
			SELECT channel, 'planted', pay_no, order_no, 0, currency, 0, source, occurred_at, create_time FROM t_trade WHERE disposition = 0 AND order_no = ?`, order.Finished),
		"a_paid_order_has_its_money": one("UPDATE t_order SET amount = amount + 1 WHERE order_no = ?", order.Finished),
		"money_that_nobody_can_use_goes_back_once": all(
			one("DELETE FROM t_refund WHERE auto = 1 AND order_no = ?", order.Paid),
			one("UPDATE t_trade SET refund_reserved = 0 WHERE disposition = 1 AND order_no = ?", order.Paid)),
		"good_money_is_not_returned_automatically":      one("UPDATE t_refund SET auto = 1 WHERE order_no = ?", order.Refunding),
		"money_for_a_person_has_an_exception":           one("DELETE FROM t_exception WHERE kind = 'amount_mismatch'"),
		"a_failed_automatic_refund_has_an_exception":    one("DELETE FROM t_exception WHERE kind = 'auto_refund_failed'"),
		"refunds_never_exceed_the_money":                one("UPDATE t_trade SET refund_reserved = refund_reserved - 1 WHERE order_no = ?", order.Refunding),
		"orders_count_their_refunds":                    one("UPDATE t_order SET refunded_amount = 1, refund_seq = refund_seq + 1 WHERE order_no = ?", order.Shipped),
		"payments_count_their_refunds":                  one("UPDATE t_payment SET refunded_amount = 1 WHERE order_no = ? LIMIT 1", order.Shipped),
		"postings_sum_to_zero":                          one("UPDATE t_ledger_entry SET amount = amount - 1 WHERE account = 'sales' AND order_no = ?", order.Finished),
		"an_unknown_payment_is_watched_or_an_exception": one("UPDATE t_payment SET next_poll_at = NULL WHERE status = 1 AND order_no = ?", order.Init),
		"a_pending_refund_is_watched_or_an_exception":   one("UPDATE t_refund SET next_poll_at = NULL WHERE order_no = ?", order.Refunding),
		"the_account_equals_paid_less_refunded": one(`
			UPDATE t_ledger_entry SET amount = amount + CASE WHEN account = 'sales' THEN 1 ELSE -1 END WHERE order_no = ?`, order.Finished),
		"a_refund_returns_money_that_came": one(`
			INSERT INTO t_refund (refund_no, order_no, user_id, pay_no, channel, trade_no, amount, currency, status, reason, auto, next_poll_at, create_time, update_time)
			VALUES ('planted', ?, 1001, 'x', 'mockpay', 'nowhere', 1, 'CNY', 0, 'x', 0, NOW(), NOW(), NOW())`, order.Paid),
		"refunded_means_all_of_it": func(t *testing.T, c *Checker, o map[order.Status]string) {
			appendMove(t, c, o[order.Refunded], order.Refunded, order.Paid)
		},
		"a_payment_is_open_once_per_channel": one(`
			INSERT INTO t_payment (pay_no, order_no, user_id, channel, amount, currency, status, next_poll_at, create_time, update_time)
			VALUES ('planted', ?, 1001, 'mockpay2', 300, 'CNY', 2, NOW(), NOW(), NOW())`, order.Init),
		"a_success_has_its_trade": one(`
			INSERT INTO t_payment (pay_no, order_no, user_id, channel, amount, currency, status, trade_no, create_time, update_time)
			VALUES ('planted', ?, 1001, 'mockpay', 300, 'CNY', 3, 'nowhere', NOW(), NOW())`, order.Cancelled),
		"an_applied_success_notice_has_its_trade": one(`
			INSERT INTO t_channel_notice (channel, notify_id, event, merchant_id, out_trade_no, trade_no, amount, currency, occurred_at, order_no, status, body, received_at)
			VALUES ('mockpay', 'N1', 'payment.succeeded', 'm', 'x', 'nowhere', 300, 'CNY', NOW(), ?, 1, '', NOW())`, order.Paid),
	}
}

// More ways to break the same rules.
func TestFurtherFaultsOfMoneyAreNamed(t *testing.T) {
	wantNamed(t, map[string]further{
		"paid without money":         {"a_paid_order_has_its_money", "DELETE FROM t_trade WHERE disposition = 0 AND order_no = ?", order.Paid},
		"money and not paid":         {"a_paid_order_has_its_money", "UPDATE t_trade SET disposition = 0 WHERE order_no = ?", order.Init},
		"late money taken":           {"a_paid_order_has_its_money", "UPDATE t_trade SET disposition = 0 WHERE order_no = ?", order.Cancelled},
		"returned in part":           {"money_that_nobody_can_use_goes_back_once", "UPDATE t_refund SET amount = 299 WHERE auto = 1 AND order_no = ?", order.Paid},
		"a failed refund counts":     {"refunds_never_exceed_the_money", "UPDATE t_refund SET status = 2 WHERE order_no = ?", order.Refunding},
		"half a posting":             {"postings_sum_to_zero", "DELETE FROM t_ledger_entry WHERE account = 'sales' AND order_no = ?", order.Finished},
		"no posting":                 {"the_account_equals_paid_less_refunded", "DELETE FROM t_ledger_entry WHERE order_no = ?", order.Finished},
		"a channel without trades":   {"the_account_equals_paid_less_refunded", "UPDATE t_ledger_entry SET account = 'channel:x' WHERE account = 'channel:mockpay2' AND kind = 'pay' AND order_no = ?", order.Shipped},
		"refunded, and not all":      {"refunded_means_all_of_it", "UPDATE t_order SET refunded_amount = 299 WHERE order_no = ?", order.Refunded},
		"success of another's money": {"a_success_has_its_trade", "UPDATE t_payment SET trade_no = 'other' WHERE status = 3 AND order_no = ?", order.Finished},
	})
}
