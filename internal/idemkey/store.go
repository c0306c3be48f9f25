package idemkey

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

// guard is this package's name in guard_hits_total.
const guard = "idempotency_key"

const (
	stateInProgress = 0
	stateDone       = 1
)

// ErrTaken: another run has this key. The caller rolls back, then looks with Find.
var ErrTaken = errors.New("idemkey: the key has a record already")

// Store keeps the records in t_idempotency_key.
type Store struct {
	DB        *mysqldb.DB
	Now       func() time.Time
	Lease     time.Duration // how long a run that commits its claim before its effect may take
	Retention time.Duration // how long an answer can be replayed
	Disabled  bool          // DISABLE_GUARDS=idempotency_key: no record is written, looked up or replayed
	Metrics   *metrics.Metrics
}

// Record is what is known under a key.
type Record struct {
	Operation   string
	Fingerprint string
	Done        bool
	LeaseUntil  time.Time
	CreatedAt   time.Time
	ExpiresAt   time.Time
	Answer      web.Answer // when Done
}

// Find returns the stored answer of an earlier run of the same request, or nil when it has yet to run.
//
// Errors: KeyReused when the key belongs to another request; InProgress while a run holds it and its lease lasts.
func (s *Store) Find(ctx context.Context, k Key) (*web.Answer, error) {
	if s.off(k) {
		return nil, nil
	}
	rec, err := s.read(ctx, s.DB, k.Caller, k.Value)
	if err != nil {
		return nil, err
	}
	now := s.Now()
	switch {
	case rec == nil:
		return nil, nil
	case !now.Before(rec.ExpiresAt):
		return nil, s.dropDead(ctx, k, now)
	case rec.Fingerprint != k.Fingerprint:
		s.count(k, metrics.Blocked)
		return nil, Reused().With("first_seen_at", rec.CreatedAt)
	case !rec.Done && !now.Before(rec.LeaseUntil):
		return nil, s.dropDead(ctx, k, now)
	case rec.Done:
		s.count(k, metrics.Replayed)
		rec.Answer.Replay = web.Replayed
		return &rec.Answer, nil
	default:
		s.count(k, metrics.Blocked)
		return nil, InProgress()
	}
}

// dropDead makes way for a new run under a key whose answer is past its retention, or whose run died. It is a statement of
// its own, before any transaction: a hundred twins that had just been refused by the unique index would each hold a shared
// lock on the record, and deadlock when they all tried to delete it.
func (s *Store) dropDead(ctx context.Context, k Key, now time.Time) error {
	_, err := s.DB.ExecContext(ctx, `
		DELETE FROM t_idempotency_key
		WHERE caller_id = ? AND idem_key = ? AND (expires_at <= ? OR (state = ? AND lease_until <= ?))`,
		k.Caller, k.Value, now, stateInProgress, now)
	if err != nil {
		return fmt.Errorf("drop dead idempotency key: %w", err)
	}
	return nil
}

// Reused is the answer to another request under a key.
func Reused() *apperr.Error {
	return apperr.New(apperr.KeyReused, "idempotency_key_reused", "This key belongs to another request. Use a new key for a new action.").
		At(apperr.LayerIdempotencyKey)
}

// InProgress is the answer while a twin is at work.
func InProgress() *apperr.Error {
	return apperr.New(apperr.InProgress, "idempotency_in_progress", "The same request is being worked on. Ask again with the same key.").
		At(apperr.LayerIdempotencyKey).After(time.Second)
}

// Begin claims the key in the caller's transaction, before the effect. It waits for a twin's transaction to end.
// ErrTaken: a twin has committed; roll back and Find. InProgress: the wait ran out.
func (s *Store) Begin(ctx context.Context, tx *sql.Tx, k Key) error {
	if s.off(k) {
		return nil
	}
	now := s.Now()
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_idempotency_key (caller_id, idem_key, operation, fingerprint, state, owner, lease_until, create_time, expires_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		k.Caller, k.Value, k.Operation, k.Fingerprint, stateInProgress, k.owner, now.Add(s.Lease), now, now.Add(s.retention(k)))
	if mysqldb.IsDuplicate(err, "uk_caller_key") {
		return ErrTaken
	}
	if mysqldb.IsLockWait(err) {
		s.count(k, metrics.Blocked)
		return InProgress().Wrap(err)
	}
	if err != nil {
		return fmt.Errorf("claim idempotency key: %w", err)
	}
	return nil
}

// retention is how long a record is kept: under a derived key for its window, but never shorter than its run may take.
func (s *Store) retention(k Key) time.Duration {
	if k.derived > 0 {
		return max(k.derived, s.Lease)
	}
	return max(k.keep, s.Retention)
}

// Finish stores the answer, in the transaction of the effect. ErrTaken: this run was presumed dead and another has the key;
// the transaction must be rolled back, and what the other stores counts.
func (s *Store) Finish(ctx context.Context, tx *sql.Tx, k Key, a web.Answer) error {
	if s.off(k) {
		return nil
	}
	res, err := tx.ExecContext(ctx, `
		UPDATE t_idempotency_key SET state = ?, status = ?, content_type = ?, location = ?, body = ?
		WHERE caller_id = ? AND idem_key = ? AND state = ? AND owner = ?`,
		stateDone, a.Status, a.ContentType, a.Location, a.Body, k.Caller, k.Value, stateInProgress, k.owner)
	if err != nil {
		return fmt.Errorf("finish idempotency key: %w", err)
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(ErrTaken, err)
	}
	return nil
}

// Abandon gives up a claim that was committed before its effect, when the run ends without an answer: the same request may
// then run again at once, not only after the lease. A claim that is another run's by now stays.
func (s *Store) Abandon(ctx context.Context, k Key) error {
	if s.off(k) {
		return nil
	}
	_, err := s.DB.ExecContext(ctx, `DELETE FROM t_idempotency_key WHERE caller_id = ? AND idem_key = ? AND state = ? AND owner = ?`,
		k.Caller, k.Value, stateInProgress, k.owner)
	if err != nil {
		return fmt.Errorf("abandon idempotency key: %w", err)
	}
	return nil
}

// reapBatch is how many records one round removes: short transactions, and the next round comes in a second.
const reapBatch = 500

// Reap removes the claims of runs that died, so that the same request may run again, and answers past their retention. It takes
// nothing that a retry still needs: a run that is presumed dead and wakes up finds its claim gone and commits nothing.
func (s *Store) Reap(ctx context.Context) error {
	now := s.Now()
	reap := func(condition string, args ...any) error {
		return s.DB.InTx(ctx, func(tx *sql.Tx) error { // run again on a deadlock with a request, which is no fault
			_, err := tx.ExecContext(ctx, `DELETE FROM t_idempotency_key WHERE `+condition+` LIMIT ?`, append(args, reapBatch)...)
			return err
		})
	}
	dead := reap(`state = ? AND lease_until <= ?`, stateInProgress, now)
	old := reap(`expires_at <= ?`, now)
	if err := errors.Join(dead, old); err != nil {
		return fmt.Errorf("reap idempotency keys: %w", err)
	}
	return nil
}

// Keep stores an answer whose effect is not of this transaction: a refusal, after the effect was rolled back, or the
// winner's result for the loser of a race. It returns what the key answers from now on: if a twin was faster, the twin's.
func (s *Store) Keep(ctx context.Context, k Key, a web.Answer) (web.Answer, error) {
	if s.off(k) {
		return a, nil
	}
	err := s.DB.InTx(ctx, func(tx *sql.Tx) error {
		if err := s.Begin(ctx, tx, k); err != nil {
			return err
		}
		return s.Finish(ctx, tx, k, a)
	})
	if errors.Is(err, ErrTaken) {
		return s.Replay(ctx, k)
	}
	if err != nil {
		return web.Answer{}, err
	}
	return s.First(k, a), nil
}

// Once runs an effect that is one transaction, at most once for each key: claim, effect, answer, commit. An answer that
// was stored before is given again; a refusal of the business is stored after the effect has been rolled back.
func (s *Store) Once(ctx context.Context, k Key, effect func(tx *sql.Tx) (web.Answer, error)) (web.Answer, error) {
	if stored, err := s.Find(ctx, k); stored != nil || err != nil {
		return deref(stored), err
	}
	var answer web.Answer
	err := s.DB.InTx(ctx, func(tx *sql.Tx) error {
		if err := s.Begin(ctx, tx, k); err != nil {
			return err
		}
		var err error
		if answer, err = effect(tx); err != nil {
			return err
		}
		return s.Finish(ctx, tx, k, answer)
	})
	switch {
	case err == nil:
		return s.First(k, answer), nil
	case errors.Is(err, ErrTaken):
		return s.Replay(ctx, k)
	case Final(err):
		return s.Keep(ctx, k, web.Problem(ctx, err))
	default:
		return web.Answer{}, err
	}
}

// Final reports whether an error is a decision of the business, which its key keeps. Everything else (malformed, not
// found, not allowed, busy, broken) leaves the key unused.
func Final(err error) bool {
	e, ok := apperr.As(err)
	return ok && (e.Kind == apperr.Conflict || e.Kind == apperr.Declined)
}

// Replay returns what a twin has stored after Begin said ErrTaken.
func (s *Store) Replay(ctx context.Context, k Key) (web.Answer, error) {
	stored, err := s.Find(ctx, k)
	if err == nil && stored == nil {
		err = InProgress() // the twin's record went between the two looks; the same request may simply come again
	}
	return deref(stored), err
}

// First marks an answer as the key's first run.
func (s *Store) First(k Key, a web.Answer) web.Answer {
	if !s.off(k) {
		s.count(k, metrics.Passed)
		a.Replay = web.FirstRun
	}
	return a
}

// Lookup returns the record of a caller's key, or nil. It serves GET /v1/idempotency-keys/{key}.
func (s *Store) Lookup(ctx context.Context, caller int64, value string) (*Record, error) {
	rec, err := s.read(ctx, s.DB, caller, value)
	if err != nil || rec == nil || !s.Now().Before(rec.ExpiresAt) {
		return nil, err
	}
	return rec, nil
}

func (s *Store) read(ctx context.Context, q mysqldb.Querier, caller int64, value string) (*Record, error) {
	var (
		rec   Record
		state int
	)
	err := q.QueryRowContext(ctx, `
		SELECT operation, fingerprint, state, lease_until, create_time, expires_at, status, content_type, location, body
		FROM t_idempotency_key WHERE caller_id = ? AND idem_key = ?`, caller, value).
		Scan(&rec.Operation, &rec.Fingerprint, &state, &rec.LeaseUntil, &rec.CreatedAt, &rec.ExpiresAt,
			&rec.Answer.Status, &rec.Answer.ContentType, &rec.Answer.Location, &rec.Answer.Body)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read idempotency key: %w", err)
	}
	rec.Done = state == stateDone
	return &rec, nil
}

func (s *Store) off(k Key) bool { return s.Disabled || !k.Sent() }

func (s *Store) count(k Key, outcome string) { s.Metrics.GuardHit(guard, k.Operation, outcome) }

func deref(a *web.Answer) web.Answer {
	if a == nil {
		return web.Answer{}
	}
	return *a
}
