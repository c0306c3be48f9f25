// Package audit records what operators did, in t_audit.
//
// Promise: a record commits with the deed, so that there is no deed without its record and no record of what did not happen. A
// request that is answered from its Idempotency-Key leaves none.
package audit

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"time"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

// Record is one deed.
type Record struct {
	ID        int64     `json:"id"`
	ActorID   int64     `json:"actor_id"`
	Action    string    `json:"action"`  // e.g. "exception.resolve"
	Subject   string    `json:"subject"` // e.g. "exception:17"
	Detail    string    `json:"detail"`
	RequestID string    `json:"request_id"`
	CreatedAt time.Time `json:"created_at"`
}

// Write records a deed in the transaction that does it.
func Write(ctx context.Context, tx *sql.Tx, by auth.Caller, action, subject, detail string, now time.Time) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_audit (actor_id, action, subject, detail, request_id, create_time) VALUES (?, ?, ?, ?, ?, ?)`,
		by.UserID, action, subject, mysqldb.Cut(detail), web.RequestID(ctx), now)
	if err != nil {
		return fmt.Errorf("write audit record: %w", err)
	}
	return nil
}

// Log reads the records.
type Log struct{ DB *mysqldb.DB }

// List returns the records newest first.
func (l *Log) List(ctx context.Context, page web.Page) ([]Record, error) {
	query, args := `SELECT id, actor_id, action, subject, detail, request_id, create_time FROM t_audit`, []any{}
	if page.Before != 0 {
		query, args = query+` WHERE id < ?`, append(args, page.Before)
	}
	list, err := mysqldb.Collect(scan)(l.DB.QueryContext(ctx, query+` ORDER BY id DESC LIMIT ?`, append(args, page.Rows())...))
	if err != nil {
		return nil, fmt.Errorf("list audit records: %w", err)
	}
	return list, nil
}

func scan(row mysqldb.Scanner) (r Record, err error) {
	err = row.Scan(&r.ID, &r.ActorID, &r.Action, &r.Subject, &r.Detail, &r.RequestID, &r.CreatedAt)
	return r, err
}

// HTTP answers GET /v1/ops/audit.
func (l *Log) HTTP(r *http.Request) (web.Answer, error) {
	page, err := web.ParsePage(r)
	if err != nil {
		return web.Answer{}, err
	}
	list, err := l.List(r.Context(), page)
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, web.Paged(page, list, func(r Record) int64 { return r.ID }))
}
