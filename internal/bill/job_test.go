package bill

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/payment"
	"example.com/oncepay/internal/testenv"
)

// The channel's clock decides which days there are, and when their bills are final.
func TestTheDaysOfAChannel(t *testing.T) {
	zone := time.FixedZone("+08:00", 8*60*60)
	now := time.Date(2026, 5, 1, 15, 59, 59, 0, time.UTC) // 23:59:59 of 1 May there
	for date, ok := range map[string]bool{
		"2026-05-01": true, "2026-04-30": true, "2000-01-01": true, "2026-05-02": false, "9999-12-31": false, "1999-12-31": false, "0000-01-01": false,
		"": false, "2026-5-1": false, "2026-02-30": false, "2026-05-01T00:00:00Z": false, "today": false, " 2026-05-01": false,
	} {
		if _, err := parseDay(date, zone, now); (err == nil) != ok || err != nil && !apperr.Is(err, "bill_day_invalid") {
			t.Errorf("%q: %v; valid: %v", date, err, ok)
		}
	}
	if _, err := parseDay("2026-05-02", zone, now.Add(time.Second)); err != nil {
		t.Errorf("the day that has just begun: %v", err)
	}
	d, err := parseDay("2026-05-01", zone, now)
	want := day{"2026-05-01", time.Date(2026, 4, 30, 16, 0, 0, 0, time.UTC), time.Date(2026, 5, 1, 16, 0, 0, 0, time.UTC), time.Date(2026, 5, 2, 2, 0, 0, 0, time.UTC)}
	if err != nil || d != want {
		t.Errorf("%+v, %v; want %+v", d, err, want)
	}
	if !d.has(d.start) || !d.has(d.end.Add(-time.Microsecond)) || d.has(d.end) || d.has(d.start.Add(-time.Microsecond)) {
		t.Error("a day begins with its first moment and ends before the next one's")
	}
	names := func(now time.Time) (names []string) {
		for _, d := range recent(zone, now) {
			names = append(names, d.name)
		}
		return names
	}
	week := []string{"2026-04-25", "2026-04-26", "2026-04-27", "2026-04-28", "2026-04-29", "2026-04-30", "2026-05-01"}
	if got := names(want.ready); !slices.Equal(got, week) {
		t.Errorf("at 10:00: %v, want %v", got, week)
	}
	if got := names(want.ready.Add(-time.Microsecond)); !slices.Equal(got, week[:6]) {
		t.Errorf("before 10:00: %v, want %v", got, week[:6])
	}
}

// A day that failed is tried again ever more rarely, not before its bill is final, and not when it is a week old.
func TestWhenADayIsTriedAgain(t *testing.T) {
	d := dayOf(time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC))
	for _, c := range []struct {
		runs  int
		now   time.Time
		after time.Duration // 0: never
	}{
		{0, d.ready, time.Minute}, {1, d.ready, time.Minute}, {2, d.ready, 2 * time.Minute}, {6, d.ready, 32 * time.Minute}, {7, d.ready, time.Hour},
		{1 << 30, d.ready, time.Hour}, {1, d.start, d.ready.Sub(d.start)}, {1, d.end.Add(7 * 24 * time.Hour), time.Minute},
		{1, d.end.Add(7*24*time.Hour + 1), 0},
	} {
		next := nextTry(c.runs, d, c.now)
		if (next == nil) != (c.after == 0) || next != nil && next.Sub(c.now) != c.after {
			t.Errorf("after %d runs at %v: %v, want %v later", c.runs, c.now, next, c.after)
		}
	}
}

// round runs the job on some instances at once.
func (f *fixture) round(instances int) {
	f.t.Helper()
	failed := make([]error, instances)
	testenv.Together(instances, func(i int) { failed[i] = f.Run(context.Background()) })
	if err := errors.Join(failed...); err != nil {
		f.t.Error(err)
	}
}

// Each day of the last week is done by one instance, once, and not before its bill is final.
func TestTheJobDoesEachDayOnce(t *testing.T) {
	f := newFixture(t)
	s := f.offer()
	f.buy(s) // on 1 May, by the channel's clock
	f.set(time.Date(2026, 5, 2, 1, 59, 59, 0, time.UTC))
	f.round(4)
	before := []string{"2026-04-25", "2026-04-26", "2026-04-27", "2026-04-28", "2026-04-29", "2026-04-30"}
	if got := f.ch.days(); !slices.Equal(got, before) {
		t.Errorf("before 10:00 %v were fetched, want %v", got, before)
	}
	f.want(0, "SELECT COUNT(*) FROM t_trade")
	f.advance(time.Second)
	f.round(4)
	f.round(1)
	if got := f.ch.days(); !slices.Equal(got, append(before, today)) {
		t.Errorf("%v were fetched, want also %s, and each once", got, today)
	}
	f.want(1, "SELECT COUNT(*) FROM t_trade WHERE source = 'bill'")
	f.want(7, "SELECT COUNT(*) FROM t_reconciliation WHERE status = 1 AND runs = 1 AND next_run_at IS NULL")
	f.want(0, "SELECT COUNT(*) FROM t_audit WHERE action = 'reconciliation.run'") // nobody did it
}

// A day that an operator ran while it lasted is run again when its bill is final.
func TestAProvisionalDayIsDoneAgain(t *testing.T) {
	f := newFixture(t)
	if rec := f.run(today); rec.Complete || rec.Status != Done {
		t.Errorf("%+v; want DONE, and not complete", rec)
	}
	s := f.offer()
	f.buy(s)
	f.round(1)
	f.want(0, "SELECT COUNT(*) FROM t_trade")
	f.set(time.Date(2026, 5, 2, 2, 0, 0, 0, time.UTC))
	f.round(1)
	f.want(1, "SELECT COUNT(*) FROM t_trade WHERE source = 'bill'")
	if rec := f.run(today); !rec.Complete || rec.Runs != 3 {
		t.Errorf("%+v; want it complete after 3 runs", rec)
	}
}

// A day whose bill is refused is tried again later, and is a person's when it has been for a week.
func TestAFailedDayIsTriedAgain(t *testing.T) {
	f := newFixture(t)
	f.spoil(`{"status":503}`)
	f.set(time.Date(2026, 5, 2, 2, 0, 0, 0, time.UTC))
	if err := f.Run(t.Context()); !apperr.Is(err, "channel_unavailable") {
		t.Errorf("%v, want channel_unavailable", err)
	}
	f.round(1) // nothing is due
	f.want(7, "SELECT COUNT(*) FROM t_reconciliation WHERE status = 2 AND runs = 1")
	f.wantExceptions()
	f.advance(firstRetry)
	f.spoil(`{}`)
	f.round(1)
	f.want(7, "SELECT COUNT(*) FROM t_reconciliation WHERE status = 1 AND runs = 2")

	f.spoil(`{"status":503}`)
	if _, _, err := f.Reconcile(t.Context(), "mockpay", "2026-05-02", ops()); err == nil {
		t.Error("a bill came from a channel that is down")
	}
	f.set(time.Date(2026, 5, 10, 2, 0, 0, 0, time.UTC)) // 2 May ended more than a week ago
	if err := f.Run(t.Context()); err == nil {
		t.Error("a bill came from a channel that is down")
	}
	f.wantExceptions("bill_rejected mockpay:2026-05-02")
	f.want(1, "SELECT COUNT(*) FROM t_reconciliation WHERE bill_date = '2026-05-02' AND status = 2 AND next_run_at IS NULL")
}

// A day that was done with its final bill stays done when it is run again and the channel is down.
func TestADoneDayStaysDone(t *testing.T) {
	f := newFixture(t)
	f.set(time.Date(2026, 5, 2, 2, 0, 0, 0, time.UTC))
	f.run("2026-05-01")
	f.spoil(`{"status":503}`)
	if _, _, err := f.Reconcile(t.Context(), "mockpay", "2026-05-01", ops()); !apperr.Is(err, "channel_unavailable") {
		t.Errorf("%v, want channel_unavailable", err)
	}
	f.want(1, "SELECT COUNT(*) FROM t_reconciliation WHERE bill_date = '2026-05-01' AND status = 1 AND next_run_at IS NULL AND last_error LIKE 'channel_unavailable%'")
	f.wantExceptions()
}

// What an instance left when it died is done by another.
func TestARunThatDiedIsTakenOver(t *testing.T) {
	f := newFixture(t)
	f.set(time.Date(2026, 5, 2, 2, 0, 0, 0, time.UTC))
	d, err := parseDay(today, f.ch.Zone(), f.clock())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // both die
		if _, _, err := f.begin(t.Context(), "mockpay", d, ops()); err != nil {
			t.Fatal(err)
		}
	}
	f.round(2)
	if slices.Contains(f.ch.days(), today) {
		t.Error("a run that may be alive was taken over")
	}
	f.advance(lease)
	f.round(2)
	f.want(1, "SELECT COUNT(*) FROM t_reconciliation WHERE bill_date = ? AND status = 1 AND runs = 3", today)
}

// A run whose time is up leaves the rest to the job, at once.
func TestTheJobFinishesWhatARequestCouldNot(t *testing.T) {
	f := newFixture(t)
	s := f.offer()
	f.buy(s)
	ctx, cancel := context.WithCancel(t.Context())
	f.ch.fetch = func(b payment.Bill, err error) (payment.Bill, error) { cancel(); return b, err }
	rec, created, err := f.Reconcile(ctx, "mockpay", today, ops())
	if err != nil || !created || rec.Status != Running || rec.ID == 0 {
		t.Fatalf("%+v, %v, %v; want it RUNNING", rec, created, err)
	}
	f.want(0, "SELECT COUNT(*) FROM t_trade")
	f.ch.fetch = nil
	f.round(1)
	if rec, err = f.Get(t.Context(), rec.ID); err != nil || rec.Status != Done || rec.LastError != "" {
		t.Errorf("%+v, %v; want it DONE", rec, err)
	}
	f.wantDifferences(rec, "channel_only payment:"+s.tradeNo+" REPAIRED")
}
