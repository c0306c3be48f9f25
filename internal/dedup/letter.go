package dedup

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/audit"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

// List returns the dead letters, newest first.
func (s *Service) List(ctx context.Context, page web.Page) ([]Record, error) {
	query, args := `SELECT `+columns+` FROM t_message_dedup WHERE status = ?`, []any{Dead}
	if page.Before != 0 {
		query, args = query+` AND id < ?`, append(args, page.Before)
	}
	list, err := mysqldb.Collect(scan)(s.DB.QueryContext(ctx, query+` ORDER BY id DESC LIMIT ?`, append(args, page.Rows())...))
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return list, nil
}

// Replay lets a dead letter be tried again, with all its tries; its exception is resolved when it succeeds. One that is not dead,
// for another operator was faster, stays as it is and is no error.
func (s *Service) Replay(ctx context.Context, tx *sql.Tx, id int64, by auth.Caller) (Record, error) {
	now := s.Now()
	return s.decide(ctx, tx, id, func() (bool, error) {
		return mysqldb.Matched(tx.ExecContext(ctx, `UPDATE t_message_dedup SET status = ?, tries = 0, next_try_at = ? WHERE id = ? AND status = ?`,
			Waiting, now, id, Dead))
	}, func(r Record) error {
		return audit.Write(ctx, tx, by, "dead_letter.replay", letter(r), subject(r), now)
	})
}

// Discard ends a dead letter for good and resolves its exception. One that is not dead stays as it is and is no error.
func (s *Service) Discard(ctx context.Context, tx *sql.Tx, id int64, by auth.Caller, reason string) (Record, error) {
	now := s.Now()
	return s.decide(ctx, tx, id, func() (bool, error) {
		return mysqldb.Matched(tx.ExecContext(ctx, `UPDATE t_message_dedup SET status = ?, done_time = ? WHERE id = ? AND status = ?`,
			Discarded, now, id, Dead))
	}, func(r Record) error {
		if err := s.Exceptions.ResolveSubject(ctx, tx, exception.DeadLetter, subject(r), by, "discarded: "+reason); err != nil {
			return err
		}
		return audit.Write(ctx, tx, by, "dead_letter.discard", letter(r), subject(r)+": "+reason, now)
	})
}

// decide makes a decision about a dead letter, once; only the decision that changed something is recorded.
func (s *Service) decide(ctx context.Context, tx *sql.Tx, id int64, change func() (bool, error), record func(Record) error) (Record, error) {
	changed, err := change()
	if err != nil {
		return Record{}, fmt.Errorf("decide about dead letter %d: %w", id, err)
	}
	r, err := get(ctx, tx, id)
	if err != nil {
		return Record{}, err
	}
	known := r != nil && (r.Status == Dead || r.Status == Discarded)
	if r != nil && !known { // one that was replayed is no dead letter any more, and asking again is no error
		if known, err = s.Exceptions.Known(ctx, tx, exception.DeadLetter, subject(*r)); err != nil {
			return Record{}, err
		}
	}
	if !known {
		return Record{}, apperr.New(apperr.NotFound, "dead_letter_not_found", "There is no dead letter %d.", id)
	}
	if changed {
		err = record(*r)
	}
	return *r, err
}

func letter(r Record) string { return "dead_letter:" + strconv.FormatInt(r.ID, 10) }

const (
	// Window is how long it stays known that a message took effect: longer than anybody can still send it. The outbox keeps it for
	// outbox.Retention (720 h), and 15 days more are longer than a broker holds what was sent last.
	Window = 1080 * time.Hour
	// cleanBatch keeps each removal a short transaction.
	cleanBatch = 500
)

// Clean removes what is finished, is older than Window, and whose message is gone from the outbox. What waits, is held or is dead
// stays, however old.
func (s *Service) Clean(ctx context.Context) error {
	for _, status := range []Status{Done, Discarded} {
		for after, more := int64(0), true; more && ctx.Err() == nil; {
			var err error
			if after, more, err = s.cleanSome(ctx, status, after); err != nil {
				return fmt.Errorf("clean up finished messages: %w", err)
			}
		}
	}
	return nil
}

// cleanSome goes through the rows behind an id, oldest first, and reports how far it came and whether there can be more.
func (s *Service) cleanSome(ctx context.Context, status Status, after int64) (last int64, more bool, err error) {
	type candidate struct {
		id      int64
		old     bool // so are all before it
		useless bool
	}
	cutoff := s.Now().Add(-Window)
	list, err := mysqldb.Collect(func(row mysqldb.Scanner) (c candidate, err error) {
		err = row.Scan(&c.id, &c.old, &c.useless)
		return c, err
	})(s.DB.QueryContext(ctx, `
		SELECT d.id, d.create_time <= ?, d.done_time <= ? AND o.id IS NULL
		FROM t_message_dedup d LEFT JOIN t_outbox o ON o.msg_id = d.msg_id
		WHERE d.status = ? AND d.id > ? ORDER BY d.id LIMIT ?`, cutoff, cutoff, status, after, cleanBatch))
	if err != nil || len(list) == 0 {
		return after, false, err
	}
	var ids []int64
	for _, c := range list {
		if c.useless {
			ids = append(ids, c.id)
		}
	}
	if len(ids) > 0 {
		marks, args := mysqldb.In(ids)
		_, err = s.DB.ExecContext(ctx, `DELETE FROM t_message_dedup WHERE id IN (`+marks+`)`, args...)
	}
	end := list[len(list)-1]
	return end.id, end.old && len(list) == cleanBatch, err
}
