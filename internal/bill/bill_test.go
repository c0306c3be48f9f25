package bill

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/payment"
	"example.com/oncepay/internal/testenv"
)

// B114: everything that can be wrong with a day is found by its numbers, each thing once, and what can be booked is.
func TestADayIsComparedByNumbersAndReportedOnce(t *testing.T) {
	f := newFixture(t)
	twice := f.sold()
	for _, no := range []string{"r-1", "r-2"} { // two equal refunds of one trade, on one day
		f.refund(twice, no, 30)
		f.decide(no, "succeed")
		f.notice(payment.EventRefunded, twice, no, 30)
	}
	channelOnly, localOnly, wrong, repeated := f.offer(), f.offer(), f.sold(), f.sold()
	f.buy(channelOnly)
	f.notice(payment.EventPaid, localOnly, "", 100) // of a trade that the channel still has as pending
	late := f.offer()
	f.set(time.Date(2026, 5, 1, 15, 59, 59, 0, time.UTC)) // 23:59:59 at the channel
	f.buy(late)
	lastSecond := f.clock()
	f.set(time.Date(2026, 5, 1, 16, 0, 1, 0, time.UTC))
	f.apply(payment.Fact{Event: payment.EventPaid, PayNo: late.payNo, TradeNo: late.tradeNo, Amount: 100, OccurredAt: lastSecond})
	f.spoil(fmt.Sprintf(`{"alter":"%s","repeat":"%s"}`, wrong.tradeNo, repeated.tradeNo))

	want := []string{
		"channel_only payment:" + channelOnly.tradeNo + " REPAIRED", "local_only payment:" + localOnly.tradeNo + " WAITING",
		"amount_mismatch payment:" + wrong.tradeNo + " WAITING", "repeated_line payment:" + repeated.tradeNo + " NOTED",
	}
	exceptions := []string{"bill_local_only mockpay:payment:" + localOnly.tradeNo, "bill_amount_mismatch mockpay:payment:" + wrong.tradeNo}
	check := func(rec Reconciliation, matched int) {
		t.Helper()
		f.wantDifferences(rec, want...)
		f.wantExceptions(exceptions...)
		if rec.Status != Done || rec.BillLines != 8 || rec.Matched != matched {
			t.Errorf("%+v; want DONE, 8 lines, %d of them matched", rec, matched)
		}
		f.want(1, "SELECT COUNT(*) FROM t_trade WHERE trade_no = ? AND source = 'bill'", channelOnly.tradeNo)
		f.want(2, "SELECT COUNT(*) FROM t_ledger_entry WHERE order_no = ?", channelOnly.orderNo)
		f.want(2, "SELECT COUNT(*) FROM t_refund WHERE status = ?", payment.RefundSuccess)
	}
	check(f.run(today), 5)
	check(f.run(today), 6) // what was repaired is ours now
	f.want(1, "SELECT COUNT(*) FROM t_bill")
	failed := make([]error, 4)
	testenv.Together(len(failed), func(i int) { _, _, failed[i] = f.Reconcile(t.Context(), "mockpay", today, ops()) })
	if err := errors.Join(failed...); err != nil {
		t.Error(err)
	}
	check(f.run(today), 6)
	f.wantDifferences(f.run("2026-05-02")) // the payment of 23:59:59 is no affair of the day it was noticed on
	f.want(2, "SELECT COUNT(*) FROM t_bill")
	f.want(8, "SELECT COUNT(*) FROM t_audit WHERE action = 'reconciliation.run' AND actor_id = 7")
}

// B114: of many runs at once one repairs, and one is the first.
func TestRunsAtOnceFindTheSame(t *testing.T) {
	f := newFixture(t)
	paid, lost := f.offer(), f.offer()
	f.buy(paid)
	f.notice(payment.EventPaid, lost, "", 100)
	const n = 6
	failed, created := make([]error, n), make([]bool, n)
	testenv.Together(n, func(i int) {
		var rec Reconciliation
		if rec, created[i], failed[i] = f.Reconcile(t.Context(), "mockpay", today, ops()); failed[i] == nil && rec.Status != Done {
			failed[i] = fmt.Errorf("it is %s", rec.Status)
		}
	})
	first := 0
	for _, c := range created {
		if c {
			first++
		}
	}
	if err := errors.Join(failed...); err != nil || first != 1 {
		t.Errorf("%d are the first: %v", first, err)
	}
	f.wantDifferences(f.run(today), "channel_only payment:"+paid.tradeNo+" REPAIRED", "local_only payment:"+lost.tradeNo+" WAITING")
	f.wantExceptions("bill_local_only mockpay:payment:" + lost.tradeNo)
	f.want(1, "SELECT COUNT(*) FROM t_reconciliation WHERE runs = ?", n+1)
	f.want(2, "SELECT COUNT(*) FROM t_ledger_entry WHERE order_no = ?", paid.orderNo)
	f.want(1, "SELECT COUNT(*) FROM t_outbox WHERE topic = 'order.paid' AND partition_key = ?", paid.orderNo)
}

// Money that a bill brings has the effect that its notice would have had.
func TestARepairIsWhatTheNoticeWouldHaveDone(t *testing.T) {
	f := newFixture(t)
	good, late := f.offer(), f.offer()
	if _, err := f.DB.Exec("UPDATE t_order SET expires_at = ? WHERE order_no = ?", f.clock(), late.orderNo); err != nil {
		t.Fatal(err)
	}
	if err := f.DB.InTx(t.Context(), func(tx *sql.Tx) error { return f.Payments.Orders.Expire(t.Context(), tx, late.orderNo) }); err != nil {
		t.Fatal(err)
	}
	f.buy(good)
	f.buy(late)
	rec := f.run(today)
	f.wantDifferences(rec, "channel_only payment:"+good.tradeNo+" REPAIRED", "channel_only payment:"+late.tradeNo+" REPAIRED")
	f.want(1, "SELECT COUNT(*) FROM t_order WHERE order_no = ? AND status = 1 AND paid_at IS NOT NULL", good.orderNo)
	f.want(1, "SELECT COUNT(*) FROM t_payment WHERE pay_no = ? AND status = ?", good.payNo, payment.Succeeded)
	f.want(2, "SELECT COUNT(*) FROM t_ledger_entry WHERE order_no = ?", good.orderNo)
	f.want(1, "SELECT COUNT(*) FROM t_outbox WHERE topic = 'order.paid' AND partition_key = ?", good.orderNo)
	f.want(1, "SELECT COUNT(*) FROM t_refund WHERE auto = 1 AND trade_no = ? AND amount = 100", late.tradeNo)
	f.want(1, "SELECT COUNT(*) FROM t_order WHERE order_no = ? AND status = 4", late.orderNo)
	f.wantExceptions()
	f.wantDifferences(f.run(today), "channel_only payment:"+good.tradeNo+" REPAIRED", "channel_only payment:"+late.tradeNo+" REPAIRED")
}

// A refund's success and its taking back are booked from the bill, too; what was noticed agrees with it, whatever came after.
func TestRefundsAreRepairedByTheirNumber(t *testing.T) {
	f := newFixture(t)
	s := f.sold()
	for _, no := range []string{"done", "lost", "undone", "noticed"} {
		f.refund(s, no, 10)
	}
	f.advance(time.Minute)
	for _, no := range []string{"done", "lost", "undone", "noticed"} {
		f.decide(no, "succeed")
	}
	f.notice(payment.EventRefunded, s, "done", 10)
	f.notice(payment.EventRefunded, s, "noticed", 10)
	f.advance(time.Minute)
	f.decide("undone", "fail")
	f.decide("noticed", "fail")
	f.notice(payment.EventRefundFailed, s, "noticed", 10)
	rec := f.run(today)
	f.wantDifferences(rec, "channel_only refund:lost REPAIRED", "channel_only refund:undone REPAIRED", "channel_only refund_reversal:undone REPAIRED")
	f.wantExceptions("refund_undone noticed", "refund_undone undone")
	if rec.BillLines != 7 || rec.Matched != 4 {
		t.Errorf("%d of %d lines matched, want 4 of 7", rec.Matched, rec.BillLines)
	}
	f.want(2, "SELECT COUNT(*) FROM t_refund WHERE status = ?", payment.RefundSuccess)
	f.want(2, "SELECT COUNT(*) FROM t_refund WHERE status = ?", payment.RefundFailed)
	f.want(1, "SELECT COUNT(*) FROM t_order WHERE order_no = ? AND refunded_amount = 20", s.orderNo)
	if rec = f.run(today); rec.Matched != 7 {
		t.Errorf("%d lines matched after the repair, want 7", rec.Matched)
	}
	f.spoil(`{"drop":"lost"}`)
	f.wantDifferences(f.run(today), "channel_only refund:lost REPAIRED", "channel_only refund:undone REPAIRED", "channel_only refund_reversal:undone REPAIRED",
		"local_only refund:lost WAITING")
}

// What no rule can book waits for a person, who is asked once: by Apply where that knows whom it concerns, else by us.
func TestWhatCannotBeBookedWaitsForAPerson(t *testing.T) {
	f := newFixture(t)
	f.call("POST", "/v1/trades", `{"merchant_id":"m-mockpay","out_trade_no":"nobody","amount":5,"currency":"CNY","notify_url":""}`)
	f.call("POST", "/v1/trades/nobody/pay?notify=off", "")
	s := f.sold()
	f.call("POST", "/v1/refunds", `{"merchant_id":"m-mockpay","out_refund_no":"console","out_trade_no":"`+s.payNo+`","amount":5,"notify_url":""}`)
	f.decide("console", "succeed")
	f.refund(s, "failed", 7)
	f.notice(payment.EventRefundFailed, s, "failed", 7)
	f.advance(time.Minute)
	f.decide("failed", "succeed") // after all
	rec := f.run(today)
	stranger := strings.Split(rec.Differences[0].Subject, ":")[1]
	f.wantDifferences(rec, "channel_only payment:"+stranger+" WAITING", "channel_only refund:console WAITING", "channel_only refund:failed WAITING")
	f.wantExceptions("bill_channel_only mockpay:payment:"+stranger, "unknown_refund mockpay:console", "refund_after_failure failed")
	f.run(today)
	f.want(3, "SELECT COUNT(*) FROM t_recon_difference")
	f.want(3, "SELECT COUNT(*) FROM t_exception")
}

// The goods of an order wait for a person when the bill casts doubt on its money, and do not for a refund.
func TestDoubtfulMoneyBlocksItsOrder(t *testing.T) {
	f := newFixture(t)
	lost, wrong, refunded := f.offer(), f.sold(), f.sold()
	f.notice(payment.EventPaid, lost, "", 100)
	f.refund(refunded, "r-1", 10)
	f.notice(payment.EventRefunded, refunded, "r-1", 10)
	f.spoil(`{"alter":"` + wrong.tradeNo + `"}`)
	f.wantDifferences(f.run(today), "local_only payment:"+lost.tradeNo+" WAITING", "amount_mismatch payment:"+wrong.tradeNo+" WAITING", "local_only refund:r-1 WAITING")
	for orderNo, want := range map[string]bool{lost.orderNo: true, wrong.orderNo: true, refunded.orderNo: false} {
		if got, err := f.Exceptions.Blocks(t.Context(), f.DB, orderNo); err != nil || got != want {
			t.Errorf("order %s is blocked: %v, %v; want %v", orderNo, got, err, want)
		}
	}
}

// A row of ours whose order is gone is a difference like another, and does not keep the day from being compared.
func TestMoneyWithoutItsOrderIsReported(t *testing.T) {
	f := newFixture(t)
	s := f.offer()
	f.notice(payment.EventPaid, s, "", 100)
	if _, err := f.DB.Exec("UPDATE t_trade SET order_no = 'gone' WHERE trade_no = ?", s.tradeNo); err != nil {
		t.Fatal(err)
	}
	f.wantDifferences(f.run(today), "local_only payment:"+s.tradeNo+" WAITING")
}

// Money that arrives while the bill is on its way is not missed in it; money that is in it and arrives before it is compared is ours.
func TestMoneyThatArrivesMeanwhileIsNoDifference(t *testing.T) {
	f := newFixture(t)
	inBill, after := f.offer(), f.offer()
	f.buy(inBill)
	f.ch.fetch = func(b payment.Bill, err error) (payment.Bill, error) {
		f.buy(after)
		f.notice(payment.EventPaid, after, "", 100)
		f.notice(payment.EventPaid, inBill, "", 100)
		return b, err
	}
	rec := f.run(today)
	f.wantDifferences(rec)
	if rec.BillLines != 1 || rec.Matched != 1 {
		t.Errorf("%d of %d lines matched, want 1 of 1", rec.Matched, rec.BillLines)
	}
}

// Money that we hear of when its line has been looked up already, and not yet been booked from it, is no difference either.
func TestMoneyThatIsNoticedAtTheLastMomentIsNoDifference(t *testing.T) {
	f := newFixture(t)
	first, second := f.offer(), f.offer()
	f.buy(first)
	f.buy(second)
	f.Payments.Wake = func() { f.notice(payment.EventPaid, second, "", 100) } // called when the first is booked
	rec := f.run(today)
	f.wantDifferences(rec, "channel_only payment:"+first.tradeNo+" REPAIRED")
	if rec.Matched != 1 {
		t.Errorf("%d lines matched, want 1", rec.Matched)
	}
	f.want(1, "SELECT COUNT(*) FROM t_trade WHERE trade_no = ? AND source = 'notice'", second.tradeNo)
}

// A payment that we have on the day after the channel's is found in the bill of the one and not missed in that of the other.
func TestTheDayIsTheChannels(t *testing.T) {
	f := newFixture(t)
	s := f.offer()
	f.set(time.Date(2026, 5, 1, 15, 59, 59, 0, time.UTC))
	f.buy(s)
	f.set(time.Date(2026, 5, 1, 16, 0, 1, 0, time.UTC))
	f.notice(payment.EventPaid, s, "", 100) // with the time we heard of it
	f.wantDifferences(f.run("2026-05-02"))
	rec := f.run(today)
	f.wantDifferences(rec)
	if rec.Matched != 1 {
		t.Errorf("%d lines matched, want 1", rec.Matched)
	}
	// What the channel confirms for the very day is missing in its bill all the same.
	f.spoil(`{"drop":"` + s.tradeNo + `"}`)
	if _, err := f.DB.Exec("UPDATE t_trade SET occurred_at = ?", time.Date(2026, 5, 1, 15, 59, 59, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	f.wantDifferences(f.run(today), "local_only payment:"+s.tradeNo+" WAITING")
}

// B114: of a bill that is refused nothing is compared; a person is told once, and when the channel sends the right one the day is done.
func TestABillThatIsRefusedIsNotCompared(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(f *fixture)
		code  string
		open  []string
	}{
		"wrong hash": {func(f *fixture) { f.spoil(`{"wrong_sha":true}`) }, "bill_checksum_mismatch", []string{"bill_rejected mockpay:" + today}},
		"unreadable": {func(f *fixture) {
			f.ch.fetch = func(payment.Bill, error) (payment.Bill, error) { return payment.Bill{}, payment.ErrBillUnreadable }
		}, "bill_unreadable", []string{"bill_rejected mockpay:" + today}},
		"down": {func(f *fixture) { f.spoil(`{"status":503}`) }, "channel_unavailable", nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.offer()
			f.buy(s)
			c.spoil(f)
			for range 2 {
				rec, _, err := f.Reconcile(t.Context(), "mockpay", today, ops())
				if e, ok := apperr.As(err); !ok || e.Kind != apperr.Unavailable || e.Code != c.code || rec.ID != 0 {
					t.Fatalf("%+v, %v; want %s", rec, err, c.code)
				}
			}
			f.wantExceptions(c.open...)
			f.want(0, "SELECT COUNT(*) FROM t_bill")
			f.want(0, "SELECT COUNT(*) FROM t_trade")
			f.want(0, "SELECT COUNT(*) FROM t_recon_difference")
			f.want(1, "SELECT COUNT(*) FROM t_reconciliation WHERE status = 2 AND last_error LIKE ? AND next_run_at > ?", c.code+"%", f.clock())
			f.spoil(`{}`)
			f.ch.fetch = nil
			rec := f.run(today)
			f.wantDifferences(rec, "channel_only payment:"+s.tradeNo+" REPAIRED")
			if rec.LastError != "" || rec.Runs != 3 {
				t.Errorf("%+v", rec)
			}
		})
	}
}

// A channel that does not answer about a missing line leaves the day undecided.
func TestWithoutTheChannelsWordNothingIsCalledMissing(t *testing.T) {
	f := newFixture(t)
	s := f.offer()
	f.notice(payment.EventPaid, s, "", 100)
	f.call("PUT", "/v1/faults", `{"query":{"status":503}}`)
	if _, _, err := f.Reconcile(t.Context(), "mockpay", today, ops()); !apperr.Is(err, "channel_unavailable") {
		t.Errorf("%v, want channel_unavailable", err)
	}
	f.want(0, "SELECT COUNT(*) FROM t_recon_difference")
	f.call("PUT", "/v1/faults", `{"query":{"status":403}}`) // a definite no is an answer
	f.wantDifferences(f.run(today), "local_only payment:"+s.tradeNo+" WAITING")
	f.call("PUT", "/v1/faults", `{"query":{"status":503}}`) // what is reported is not asked about again
	f.wantDifferences(f.run(today), "local_only payment:"+s.tradeNo+" WAITING")
}

// A day of many lines is looked up in a few statements and found to the last line.
func TestALargeDayIsMatchedToTheLastLine(t *testing.T) {
	f := newFixture(t)
	const n = 2*lookUpAtOnce + 1
	var lines []payment.BillLine
	values, args := []string{}, []any{}
	for i := range n {
		no := fmt.Sprintf("T%06d", i)
		lines = append(lines, payment.BillLine{Kind: payment.BillPayment, TradeNo: no, PayNo: "p", Amount: money.Amount(i), Currency: "CNY", At: f.clock()})
		values = append(values, "('mockpay', ?, 'p', 'o', ?, 'CNY', 0, 'notice', ?, ?)")
		args = append(args, no, i, f.clock(), f.clock())
	}
	if _, err := f.DB.Exec(`INSERT INTO t_trade (channel, trade_no, pay_no, order_no, amount, currency, disposition, source, occurred_at, create_time)
		VALUES `+strings.Join(values, ", "), args...); err != nil {
		t.Fatal(err)
	}
	f.ch.fetch = func(payment.Bill, error) (payment.Bill, error) {
		return payment.Bill{Day: today, Raw: []byte("raw"), SHA256: strings.Repeat("0", 64), Lines: lines}, nil
	}
	if rec := f.run(today); rec.BillLines != n || rec.Matched != n || len(rec.Differences) != 0 {
		t.Errorf("%d of %d lines matched, %d differences", rec.Matched, rec.BillLines, len(rec.Differences))
	}
}
