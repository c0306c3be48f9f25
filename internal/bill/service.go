package bill

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/audit"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/payment"
	"example.com/oncepay/internal/web"
)

// Service compares bills with the books.
type Service struct {
	DB         *mysqldb.DB
	Payments   *payment.Service
	Exceptions *exception.Store
	Now        func() time.Time
	Metrics    *metrics.Metrics
}

const (
	// lease is when a run that was begun and not ended is taken for dead, and done by the job: longer than an ordinary day takes.
	// Two runs at once do no harm.
	lease = 10 * time.Minute
	// firstRetry and maxRetry space the tries of a day that failed: a channel's outage is over in minutes or in hours.
	firstRetry = time.Minute
	maxRetry   = time.Hour
	// recordBudget bounds the transaction that records how a run ended; it runs also when the run's own time is up.
	recordBudget = 5 * time.Second
	// fetchBudget is for one bill, a file of megabytes over a slow line.
	fetchBudget = time.Minute
	// batch is how many due days one round of the job takes: two channels' week.
	batch = 14
)

// The codes of a bill that nothing may be concluded from.
const (
	codeChecksum   = "bill_checksum_mismatch"
	codeUnreadable = "bill_unreadable"
)

// Reconcile compares a channel's day for an operator, now, and reports whether it is the first time. Again is the same row and
// finds nothing that was found before. If ctx ends meanwhile the result is RUNNING, and the job does the rest.
//
// Errors: NotFound channel_not_found; Invalid bill_day_invalid; Unavailable bill_checksum_mismatch or bill_unreadable, when the
// channel's bill is refused and nothing was compared, or channel_unavailable. The job tries again after these, too.
func (s *Service) Reconcile(ctx context.Context, channel, date string, by auth.Caller) (rec Reconciliation, created bool, err error) {
	ch, ok := s.Payments.Channels[channel]
	if !ok {
		return Reconciliation{}, false, apperr.New(apperr.NotFound, "channel_not_found", "There is no such channel.")
	}
	d, err := parseDay(date, ch.Zone(), s.Now())
	if err != nil {
		return Reconciliation{}, false, err
	}
	rec, created, err = s.begin(ctx, channel, d, by)
	if err != nil {
		return Reconciliation{}, false, err
	}
	err = s.run(ctx, &rec, ch, d)
	if err != nil && ctx.Err() == nil {
		return Reconciliation{}, created, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordBudget)
	defer cancel()
	stored, getErr := s.Get(ctx, rec.ID)
	if err == nil { // what this run did; another may have begun since
		stored.Status, stored.Complete = rec.Status, rec.Complete
	}
	return stored, created, getErr
}

// Get returns a reconciliation with its differences, or NotFound.
func (s *Service) Get(ctx context.Context, id int64) (Reconciliation, error) {
	rec, err := get(ctx, s.DB, id)
	if err != nil {
		return Reconciliation{}, err
	}
	if rec == nil {
		return Reconciliation{}, apperr.New(apperr.NotFound, "reconciliation_not_found", "There is no reconciliation %d.", id)
	}
	return *rec, nil
}

// begin makes the day's row, or counts one more run on it, together with the record of who asked for it.
func (s *Service) begin(ctx context.Context, channel string, d day, by auth.Caller) (rec Reconciliation, created bool, err error) {
	record := func(tx *sql.Tx, id int64, now time.Time) error {
		return audit.Write(ctx, tx, by, "reconciliation.run", fmt.Sprintf("reconciliation:%d", id), channel+" "+d.name, now)
	}
	err = s.DB.InTx(ctx, func(tx *sql.Tx) error {
		now := s.Now()
		id, err := insert(ctx, tx, channel, d.name, 1, now.Add(lease), now)
		if err != nil {
			return err
		}
		rec = Reconciliation{ID: id, Channel: channel, Date: d.name, Runs: 1}
		return record(tx, id, now)
	})
	if !errors.Is(err, errExists) {
		return rec, err == nil, err
	}
	err = s.DB.InTx(ctx, func(tx *sql.Tx) (err error) {
		now := s.Now()
		if rec, err = again(ctx, tx, channel, d.name, now.Add(lease), now); err != nil {
			return err
		}
		return record(tx, rec.ID, now)
	})
	return rec, false, err
}

// Run is a round of the job: it plans the days of the last week that have no row yet, and does what is due. Each day is claimed by
// moving its time on, so that of several instances one does it, and another one if that dies.
func (s *Service) Run(ctx context.Context) error {
	for _, ch := range s.Payments.Channels {
		if err := s.plan(ctx, ch); err != nil {
			return err
		}
	}
	due, err := dueRuns(ctx, s.DB, s.Now(), batch)
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range due {
		claimed, err := claim(ctx, s.DB, rec, s.Now().Add(lease), s.Now())
		if err != nil {
			return err
		}
		if claimed {
			rec.Runs++
			if err := s.runDue(ctx, rec); err != nil {
				errs = append(errs, fmt.Errorf("reconcile %s of %s: %w", rec.Channel, rec.Date, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (s *Service) runDue(ctx context.Context, rec Reconciliation) error {
	ch, ok := s.Payments.Channels[rec.Channel]
	if !ok {
		return fmt.Errorf("no channel %q", rec.Channel)
	}
	d, err := parseDay(rec.Date, ch.Zone(), s.Now())
	if err != nil {
		return err
	}
	return s.run(ctx, &rec, ch, d)
}

// plan makes the rows of days whose bill is final and that nobody has asked for. The look before only saves the inserts; the guard
// is the unique index.
func (s *Service) plan(ctx context.Context, ch payment.Channel) error {
	now := s.Now()
	days := recent(ch.Zone(), now)
	have, err := daysSince(ctx, s.DB, ch.Name(), days[0].name)
	if err != nil {
		return err
	}
	for _, d := range days {
		if slices.Contains(have, d.name) {
			continue
		}
		err := s.DB.InTx(ctx, func(tx *sql.Tx) error {
			_, err := insert(ctx, tx, ch.Name(), d.name, 0, now, now)
			return err
		})
		if err != nil && !errors.Is(err, errExists) {
			return err
		}
	}
	return nil
}

// run compares the day and records how that ended.
func (s *Service) run(ctx context.Context, rec *Reconciliation, ch payment.Channel, d day) error {
	final := !s.Now().Before(d.ready)
	err := s.reconcile(ctx, rec, ch, d)
	if err == nil {
		var next *time.Time
		if !final {
			next = &d.ready
		}
		rec.Status, rec.Complete = Done, final
		err = s.DB.InTx(ctx, func(tx *sql.Tx) error {
			if err := done(ctx, tx, *rec, next, s.Now()); err != nil {
				return err
			}
			return s.Exceptions.ResolveSubject(ctx, tx, exception.BillRejected, rec.Channel+":"+rec.Date, auth.Caller{}, "a good bill came later")
		})
	}
	if err == nil {
		web.Log(ctx).Info("reconciled", "channel", rec.Channel, "date", rec.Date, "lines", rec.BillLines, "matched", rec.Matched, "complete", final)
		return nil
	}
	recordCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordBudget)
	defer cancel()
	if ctx.Err() != nil {
		return errors.Join(err, s.DB.InTx(recordCtx, func(tx *sql.Tx) error {
			now := s.Now()
			return putOff(recordCtx, tx, rec.ID, Running, "not finished in time; the job goes on", &now, now)
		}))
	}
	return errors.Join(err, s.failed(recordCtx, *rec, d, err))
}

// failed plans the next try. A bill that is refused is a person's at once, a day that is too old for another try as well. A day that was
// done with its final bill stays done.
func (s *Service) failed(ctx context.Context, rec Reconciliation, d day, cause error) error {
	return s.DB.InTx(ctx, func(tx *sql.Tx) error {
		now := s.Now()
		status, next := Failed, nextTry(rec.Runs, d, now)
		if rec.wasComplete {
			status, next = Done, nil
		}
		if err := putOff(ctx, tx, rec.ID, status, cause.Error(), next, now); err != nil {
			return err
		}
		refused := apperr.Is(cause, codeChecksum) || apperr.Is(cause, codeUnreadable)
		if !refused && (rec.wasComplete || next != nil) {
			return nil // nothing is lost, or the next try makes it good
		}
		return s.Exceptions.Open(ctx, tx, exception.Exception{
			Kind: exception.BillRejected, Subject: rec.Channel + ":" + rec.Date, Channel: rec.Channel, Again: true,
			Detail: fmt.Sprintf("the bill of %s could not be used, nothing of it was compared: %v", rec.Date, cause),
		})
	})
}

// nextTry is when a day that failed is tried again: not before its bill is final, and not once it is older than what the job cares
// for (nil).
func nextTry(runs int, d day, now time.Time) *time.Time {
	if now.Sub(d.end) > lookBack*24*time.Hour {
		return nil
	}
	at := now.Add(min(firstRetry<<min(max(runs-1, 0), 10), maxRetry)) // 10 doublings are far past the hour and far from overflow
	if at.Before(d.ready) {
		at = d.ready
	}
	return &at
}
