package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.com/oncepay/internal/mysqldb"
)

// Status is where a message stands with a consumer.
type Status uint8

// The statuses; the numbers stand in t_message_dedup.status.
const (
	Processing Status = 0 // a run holds it
	Done       Status = 1
	Waiting    Status = 2 // for its next try
	Dead       Status = 3 // given up; a person decides
	Discarded  Status = 4 // by a person
)

var statusNames = [...]string{"processing", "done", "waiting", "dead", "discarded"}

// MarshalText makes the name the JSON form.
func (s Status) MarshalText() ([]byte, error) {
	if int(s) >= len(statusNames) {
		return nil, fmt.Errorf("dedup: status %d has no name", s)
	}
	return []byte(statusNames[s]), nil
}

// Finished reports whether nothing more is to be done.
func (s Status) Finished() bool { return s == Done || s == Discarded }

// Record is what a consumer has made of a message.
type Record struct {
	ID        int64     `json:"id"`
	Consumer  string    `json:"consumer"`
	MsgID     string    `json:"msg_id"`
	Topic     string    `json:"topic"`
	OrderNo   string    `json:"order_no"` // empty when the message is not about an order
	Status    Status    `json:"status"`
	Tries     int       `json:"tries"` // that failed
	LastError string    `json:"last_error"`
	CreatedAt time.Time `json:"created_at"`

	key       string     // the message's
	owner     string     // the run that holds it; empty: it has no row yet
	nextTryAt *time.Time // Processing: the end of the lease; Waiting: the next try
}

const columns = `id, consumer, msg_id, topic, msg_key, status, tries, owner, next_try_at, last_error, create_time`

func scan(row mysqldb.Scanner) (Record, error) {
	var (
		r    Record
		next sql.NullTime
	)
	err := row.Scan(&r.ID, &r.Consumer, &r.MsgID, &r.Topic, &r.key, &r.Status, &r.Tries, &r.owner, &next, &r.LastError, &r.CreatedAt)
	if next.Valid {
		r.nextTryAt = &next.Time
	}
	r.OrderNo = orderNo(r.key)
	return r, err
}

// orderNo is a message's key if it is an order's number: a UUID in hex.
func orderNo(key string) string {
	if len(key) != 32 || strings.Trim(key, "0123456789abcdef") != "" {
		return ""
	}
	return key
}

// errTaken: another run has this message, or has had it. The caller rolls back, then looks.
var errTaken = errors.New("dedup: another run has this message")

// put notes what becomes of a message, and returns its row's id: with a row of its own if it has none, else in the row that this run
// holds. errTaken: it has one after all, or this run was presumed dead and another has the row.
//
// Updates go by id alone: with the status beside uk_consumer_msg MariaDB took ix_status, locked what others had done, and neighbours
// deadlocked (measured by TestNeighboursDoNotLockEachOutForGood).
func put(ctx context.Context, tx *sql.Tx, r Record, now time.Time) (id int64, err error) {
	if r.owner == "" {
		return insert(ctx, tx, r, now)
	}
	held, err := mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_message_dedup SET status = ?, tries = ?, next_try_at = ?, last_error = ?, done_time = ?
		WHERE id = ? AND status = ? AND owner = ?`,
		r.Status, r.Tries, r.nextTryAt, r.LastError, doneAt(r, now), r.ID, Processing, r.owner))
	if err != nil {
		return 0, fmt.Errorf("note what became of message %s: %w", r.MsgID, err)
	}
	if !held {
		return 0, errTaken
	}
	return r.ID, nil
}

func insert(ctx context.Context, tx *sql.Tx, r Record, now time.Time) (id int64, err error) {
	res, err := tx.ExecContext(ctx, `
		INSERT INTO t_message_dedup (consumer, msg_id, topic, msg_key, status, tries, owner, next_try_at, last_error, create_time, done_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.Consumer, r.MsgID, r.Topic, r.key, r.Status, r.Tries, r.owner, r.nextTryAt, r.LastError, now, doneAt(r, now))
	if mysqldb.IsDuplicate(err, "uk_consumer_msg") {
		return 0, errTaken
	}
	if err != nil {
		return 0, fmt.Errorf("mark message %s: %w", r.MsgID, err)
	}
	return res.LastInsertId()
}

func doneAt(r Record, now time.Time) *time.Time {
	if r.Status == Done {
		return &now
	}
	return nil
}

// setOutcome notes what a message came to, behind its effect. It misses if the transaction with the mark is gone: a handler that
// passes over a 1213 must not look like a success.
func setOutcome(ctx context.Context, tx *sql.Tx, id int64, outcome string) error {
	err := mysqldb.ExpectOne(tx.ExecContext(ctx, `UPDATE t_message_dedup SET outcome = ? WHERE id = ? AND status = ?`, outcome, id, Done))
	if err != nil {
		return fmt.Errorf("note a message's outcome: %w", err)
	}
	return nil
}

func find(ctx context.Context, q mysqldb.Querier, consumer, msgID string) (*Record, error) {
	return one(q.QueryRowContext(ctx, `SELECT `+columns+` FROM t_message_dedup WHERE consumer = ? AND msg_id = ?`, consumer, msgID))
}

func get(ctx context.Context, q mysqldb.Querier, id int64) (*Record, error) {
	return one(q.QueryRowContext(ctx, `SELECT `+columns+` FROM t_message_dedup WHERE id = ?`, id))
}

func one(row *sql.Row) (*Record, error) {
	r, err := scan(row)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what became of a message: %w", err)
	}
	return &r, nil
}

// due returns what a consumer may try again, longest due first: its pause is over, or the lease of the run that had it.
func due(ctx context.Context, q mysqldb.Querier, consumer string, now time.Time, limit int) ([]Record, error) {
	list, err := mysqldb.Collect(scan)(q.QueryContext(ctx, `
		SELECT `+columns+` FROM t_message_dedup WHERE next_try_at <= ? AND consumer = ? ORDER BY next_try_at, id LIMIT ?`, now, consumer, limit))
	if err != nil {
		return nil, fmt.Errorf("read messages that are due: %w", err)
	}
	return list, nil
}

// claim takes a message for a run, as held says. False: another run has it. Each claim brings a new owner, so that status and owner
// tell whether the row is as it was read.
func claim(ctx context.Context, db *mysqldb.DB, was, held Record) (bool, error) {
	claimed, err := mysqldb.Matched(db.ExecContext(ctx, `
		UPDATE t_message_dedup SET status = ?, tries = ?, owner = ?, next_try_at = ? WHERE id = ? AND status = ? AND owner = ?`,
		held.Status, held.Tries, held.owner, held.nextTryAt, was.ID, was.Status, was.owner))
	if err != nil {
		return false, fmt.Errorf("claim message %s: %w", was.MsgID, err)
	}
	return claimed, nil
}
