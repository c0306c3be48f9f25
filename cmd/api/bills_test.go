package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/mockpay"
	"example.com/oncepay/internal/testenv"
)

// The channel's days begin at midnight of UTC+8. These tests are about billDay, which ends while it is 16:00 in UTC.
const billDay = "2026-05-01"

// onBillDay is a time of that day, or of the next from 24 hours on, by the channel's clock.
func onBillDay(hours, minutes, seconds int) time.Time {
	return time.Date(2026, 5, 1, hours, minutes, seconds, 0, time.FixedZone("", 8*60*60)).UTC()
}

// billed is a stack whose channel and instances have one clock, which stands still where the test puts it.
type billed struct {
	*stack
	channelClock *clock
}

func newBilled(t *testing.T) *billed {
	t.Helper()
	b := &billed{newStack(t), &clock{}}
	srv, err := mockpay.New(mockpay.Config{
		Merchants: map[string][]string{mockpayMerchant: {config.DevMockpaySecret}, mockpay2Merchant: {config.DevMockpay2Secret}},
		Now:       b.channelClock.now, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(srv)
	t.Cleanup(func() {
		server.Close()
		if err := srv.Close(context.Background()); err != nil {
			t.Errorf("close mockpay: %v", err)
		}
	})
	b.channel = &channelServer{server.URL, srv}
	b.useChannel(server.URL)
	b.at(onBillDay(10, 0, 0))
	b.exec("DELETE FROM t_subscription") // from the start of the stack, which was by the real clock
	for _, i := range b.instances {
		if err := i.svc.messages.Register(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b.sku(1, 30000, 100)
	return b
}

// at sets all clocks.
func (b *billed) at(when time.Time) {
	b.channelClock.stop(when)
	for _, i := range b.instances {
		i.clock.stop(when)
	}
}

// bought returns an order that is paid at the channel now. Who is told of it hears it later, from the returned notice.
func (b *billed) bought(user int64) (orderNo string, n mockpay.Notice) {
	b.t.Helper()
	orderNo, n = b.offered(user)
	n.OccurredAt = b.channelClock.now()
	return orderNo, n
}

// heard is bought, and we are told at once.
func (b *billed) heard(user int64) (orderNo, tradeNo string) {
	b.t.Helper()
	orderNo, n := b.bought(user)
	wantAck(b.t, b.notify(0, n))
	return orderNo, n.TradeNo
}

// reconcile describes an operator's request to compare a day.
func reconcile(on int, date, k string) call {
	return call{on: on, as: operator, path: "/v1/ops/reconciliations", body: fmt.Sprintf(`{"channel":"mockpay","date":%q}`, date), key: k}
}

// differences are what a reconciliation has found, as "kind subject: status", sorted.
func (b *billed) differences(r reply) []string {
	b.t.Helper()
	var rec struct {
		Differences []struct{ Kind, Subject, Status string }
	}
	if err := json.Unmarshal(r.body, &rec); err != nil {
		b.t.Fatalf("%v: %v", r, err)
	}
	list := []string{}
	for _, d := range rec.Differences {
		list = append(list, fmt.Sprintf("%s %s: %s", d.Kind, d.Subject, d.Status))
	}
	slices.Sort(list)
	return list
}

// badDay is billDay with everything in it that can go wrong, and what has to be found.
type badDay struct {
	lost, late, twins string // orders: a success nobody was told of, one of an order that is cancelled, one with two equal refunds
	differences       []string
}

func (b *billed) newBadDay() badDay {
	b.t.Helper()
	b.heard(1001)
	day := badDay{}
	day.twins, _ = b.heard(1002)
	for _, no := range []string{"R-1", "R-2"} {
		b.refund(1002, day.twins, no, 5000)
		b.bank(no, "succeed")
	}
	n := b.refundNoticeOf("refund.succeeded", "R-1")
	n.OccurredAt = b.channelClock.now()
	wantAck(b.t, b.notify(0, n))
	var lost, late mockpay.Notice
	day.lost, lost = b.bought(1003)
	_, dropped := b.heard(1004)
	_, altered := b.heard(1005)
	_, repeated := b.heard(1006)
	day.late, late = b.bought(1007)
	b.must(http.StatusOK, b.step(1007, day.late, "cancel", ""))
	b.at(onBillDay(23, 59, 59))
	_, lastSecond := b.bought(1008)
	b.at(onBillDay(24, 0, 1))
	wantAck(b.t, b.notify(0, lastSecond))
	b.heard(1009) // is of the next day
	b.at(onBillDay(24+11, 0, 0))
	b.faults(fmt.Sprintf(`{"bill":{"drop":%q,"alter":%q,"repeat":%q}}`, dropped, altered, repeated))
	day.differences = []string{
		"amount_mismatch payment:" + altered + ": WAITING",
		"channel_only payment:" + lost.TradeNo + ": REPAIRED",
		"channel_only payment:" + late.TradeNo + ": REPAIRED",
		"channel_only refund:R-2: REPAIRED",
		"local_only payment:" + dropped + ": WAITING",
		"repeated_line payment:" + repeated + ": NOTED",
	}
	slices.Sort(day.differences)
	return day
}

// B114: a day with two equal refunds, a payment in its last second that was noticed on the next day, money that only the channel or only
// we have, a wrong amount and a repeated line. Two operators compare it at once, on both instances, and then once more: each difference
// is found by its number and reported once, and what can be booked is, as its notice would have done.
func TestABadDayIsReportedAndRepairedOnce(t *testing.T) {
	b := newBilled(t)
	day := b.newBadDay()
	replies := b.all(2, func(i int) call { return reconcile(i, billDay, "") })
	if got := tally(replies); got["201 "] != 1 || got["200 "] != 1 {
		t.Errorf("two at once: %v %v; want one 201 and one 200", got, replies)
	}
	last := b.must(http.StatusOK, reconcile(0, billDay, ""))
	got := b.must(http.StatusOK, call{as: operator, path: "/v1/ops/reconciliations/" + last.field("id")})
	if list := b.differences(got); !slices.Equal(list, day.differences) {
		t.Errorf("differences\n%s\nwant\n%s", strings.Join(list, "\n"), strings.Join(day.differences, "\n"))
	}
	for field, want := range map[string]string{"runs": "3", "bill_lines": "10", "matched": "8", "status": "DONE", "complete": "true"} {
		if got.field(field) != want {
			t.Errorf("%s is %s, want %s", field, got.field(field), want)
		}
	}
	if n := b.count("SELECT COUNT(*) FROM t_bill"); n != 1 {
		t.Errorf("%d bills are kept, want one: its content came three times", n)
	}
	if open := b.exceptions(); len(open) != 2 || b.alarms(exception.BillLocalOnly) != 1 || b.alarms(exception.BillAmountMismatch) != 1 {
		t.Errorf("exceptions %v; want one of each difference that waits, and one alarm", open)
	}
	b.wantFate(t, day.lost, paidOnce())
	b.wantFate(t, day.late, fate{order: "CANCELLED", payment: "SUCCEEDED", returned: 1, credits: 1})
	twins := paidOnce()
	twins.refunded = 10000
	b.wantFate(t, day.twins, twins)
	b.wantBooked(2)
	b.wantHeardByBill(1003, day.lost)
	next := b.must(http.StatusCreated, reconcile(1, "2026-05-02", ""))
	if list := b.differences(next); len(list) != 0 || next.field("bill_lines") != "1" || next.field("matched") != "1" {
		t.Errorf("the next day: %v; want its one payment and no difference", next)
	}
	testenv.Together(2, func(i int) { b.round(i, "bills.reconcile") })
	if n := b.count("SELECT COUNT(*) FROM t_recon_difference"); n != len(day.differences) {
		t.Errorf("%d differences after the jobs' rounds, want %d as before", n, len(day.differences))
	}
	b.at(onBillDay(24+11, 1, 0))
	b.consume()
	b.wantEarned(1003, 300, 1)
	b.wantSound()
}

// wantHeardByBill asserts that an order's timeline tells where its money was heard of.
func (b *billed) wantHeardByBill(user int64, orderNo string) {
	b.t.Helper()
	for _, line := range b.story(user, orderNo) {
		if line.Kind == "money" && line.What == "trade on mockpay heard by bill" {
			return
		}
	}
	b.t.Errorf("the timeline does not say that the bill told of the money: %+v", b.story(user, orderNo))
}

// reconciled counts the runs that both instances tell of.
func (b *billed) reconciled() (n int) {
	for _, i := range b.instances {
		n += strings.Count(i.logs.String(), "msg=reconciled")
	}
	return n
}

// Without anybody asking, the next morning's job books what no notice and no query told, once on two instances.
func TestTheMorningsJobFindsLostMoney(t *testing.T) {
	b := newBilled(t)
	lost, _ := b.bought(1001)
	b.at(onBillDay(24+9, 59, 59))
	testenv.Together(2, func(i int) { b.round(i, "bills.reconcile") })
	b.wantFate(t, lost, unpaid())
	b.at(onBillDay(24+10, 0, 0))
	before := b.reconciled()
	gate := testenv.NewGate(t) // both know what is due before either claims it
	for _, i := range b.instances {
		i.mysql.On(testenv.Contains("UPDATE t_reconciliation SET status"), 1, testenv.Hold(gate))
	}
	done := b.goes(func(context.Context) { testenv.Together(2, func(i int) { b.round(i, "bills.reconcile") }) })
	gate.WaitEntered(t, 2)
	gate.Open()
	done()
	b.wantFate(t, lost, paidOnce())
	if runs := b.reconciled() - before; runs != 2 {
		t.Errorf("%d runs of the day that has ended, want one for each channel", runs)
	}
	b.wantHeardByBill(1001, lost)
	b.wantSound()
}

// The bill and the notice tell of the same money at once, on both instances: it is booked once, whoever is first.
func TestABillAndANoticeAtOnceBookOnce(t *testing.T) {
	b := newBilled(t)
	for round := range 5 {
		orderNo, n := b.bought(int64(1001 + round))
		replies := make([]reply, 4)
		testenv.Together(len(replies), func(i int) {
			if i < 2 {
				replies[i] = b.notify(i, n)
			} else {
				replies[i] = b.do(reconcile(i, billDay, ""))
			}
		})
		for i, r := range replies {
			if i < 2 {
				wantAck(t, r)
			} else if r.status != http.StatusOK && r.status != http.StatusCreated {
				t.Errorf("reconciliation: %v", r)
			}
		}
		b.wantFate(t, orderNo, paidOnce())
	}
	b.wantSound()
}

// B114: of a bill whose bytes are not those of its SHA-256 nothing is compared, and a person is told. That is over by itself when a later
// run of the day succeeds, and is told again when the bill is refused again, whoever had resolved it.
func TestABillWithAWrongChecksumIsRefused(t *testing.T) {
	b := newBilled(t)
	lost, _ := b.bought(1001)
	k := key("reconcile")
	refuse := func(on, alarms int) {
		t.Helper()
		b.faults(`{"bill":{"wrong_sha":true}}`)
		r := b.do(reconcile(on, billDay, k))
		wantProblem(t, r, http.StatusServiceUnavailable, "bill_checksum_mismatch")
		wantUndecided(t, r)
		if open := b.exceptions(); !slices.Equal(open, []string{"bill_rejected"}) || b.alarms(exception.BillRejected) != alarms {
			t.Errorf("exceptions %v, %d alarms; want one bill_rejected and alarm number %d", open, b.alarms(exception.BillRejected), alarms)
		}
		b.faults(`{}`)
	}
	refuse(0, 1)
	refuse(1, 1) // the same trouble
	b.wantFate(t, lost, unpaid())
	for _, table := range []string{"t_bill", "t_recon_difference"} {
		if n := b.count("SELECT COUNT(*) FROM " + table); n != 0 {
			t.Errorf("%d rows of %s from refused bills, want none", n, table)
		}
	}
	good := b.must(http.StatusOK, reconcile(0, billDay, k)) // the key was not used up
	wantReplay(t, b.do(reconcile(1, billDay, k)), good)
	b.wantFate(t, lost, paidOnce())
	if open := b.exceptions(); len(open) != 0 {
		t.Errorf("exceptions %v after a good bill, want none", open)
	}
	k = key("reconcile-again")
	refuse(1, 2)
	b.resolveAll(`{"resolution":"asked the channel"}`)
	refuse(0, 3)
	b.must(http.StatusOK, reconcile(1, billDay, k))
	if n := b.count("SELECT COUNT(*) FROM t_exception"); n != 1 || len(b.exceptions()) != 0 {
		t.Errorf("%d exceptions, %v of them open; want one in all, resolved", n, b.exceptions())
	}
	b.wantSound()
}

// A channel that gives no bill is no difference and, while the job will ask again, nobody's work; what is no day of the channel is
// refused and leaves no row.
func TestWhatCannotBeComparedLeavesNoDifference(t *testing.T) {
	b := newBilled(t)
	b.heard(1001)
	for name, want := range map[string]struct {
		body   string
		status int
	}{
		"channel_not_found": {`{"channel":"nobody","date":"2026-05-01"}`, http.StatusNotFound},
		"bill_day_invalid":  {`{"channel":"mockpay","date":"2026-05-02"}`, http.StatusBadRequest}, // it begins in 14 hours
	} {
		wantProblem(t, b.do(call{as: operator, path: "/v1/ops/reconciliations", body: want.body}), want.status, name)
	}
	if n := b.count("SELECT COUNT(*) FROM t_reconciliation"); n != 0 {
		t.Errorf("%d reconciliations, want none", n)
	}
	b.faults(`{"bill":{"status":500}}`)
	wantProblem(t, b.do(reconcile(0, billDay, "")), http.StatusServiceUnavailable, "channel_unavailable")
	b.faults(`{}`)
	if n := len(b.exceptions()) + b.count("SELECT COUNT(*) FROM t_recon_difference"); n != 0 {
		t.Errorf("%d exceptions and differences, want none", n)
	}
	b.at(onBillDay(24+10, 0, 0))
	b.round(1, "bills.reconcile")
	r := b.must(http.StatusOK, call{as: operator, path: "/v1/ops/reconciliations?limit=100"})
	if n := b.count("SELECT COUNT(*) FROM t_reconciliation WHERE channel = 'mockpay' AND bill_date = ? AND status = 1 AND matched = 1", billDay); n != 1 {
		t.Errorf("the job has not made up for it: %s", r.body)
	}
	b.wantSound()
}
