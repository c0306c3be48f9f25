package outbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"example.com/oncepay/internal/mysqldb"
)

const (
	// lease is how long a shard is a relay's after it took it. A relay that died keeps its shard for the rest of it, so it is well
	// below LookAfter; a batch that was begun in turn has the rest of it to be published and marked.
	lease = 10 * time.Second
	// turn is how long a relay goes on beginning batches of one shard. A relay that has all shards to itself, and a long queue in
	// each, comes back to the first within LookAfter.
	turn = 2 * time.Second
	// rest is how long a shard is left alone after it could not be sent. All instances keep to it, so a broker that is down is
	// asked, and the failure logged, every few seconds and not five times a second by each of them.
	rest = 2 * time.Second
	// batch is how many messages are read, published and marked together, and so how many a relay that dies lets be sent twice.
	// The work around a batch (one read, one short transaction) is small beside a hundred sends.
	batch = 100
)

// Relay sends what the outbox owes. It runs on every instance.
//
// Promise: every message that was committed is published, at least once. In a healthy run it is published once, and messages
// of one key in the order in which they were owed. It may come again, and out of order, when a relay dies or stalls for longer
// than its lease, when a publish fails half-way, or when two instances' clocks are further apart than the lease.
type Relay struct {
	DB *mysqldb.DB
	// Publish sends messages of one shard in their order. After an error all of them count as not sent.
	Publish func(shard int, list []Stored) error
	Now     func() time.Time
	Log     *slog.Logger
	// Oldest is told in every round how old the oldest message is that has not been sent; 0: all are sent.
	Oldest func(age time.Duration)
}

// Round sends every shard that has unsent messages and that no other relay has. A shard that fails does not keep the others
// from being sent.
func (r *Relay) Round(ctx context.Context) error {
	queues, err := waiting(ctx, r.DB)
	if err != nil {
		return err
	}
	var oldest time.Duration
	for _, q := range queues {
		oldest = max(oldest, r.Now().Sub(q.since))
	}
	r.Oldest(oldest)
	var errs []error
	for _, q := range queues {
		if ctx.Err() != nil {
			break
		}
		if err := r.relay(ctx, q.shard); err != nil {
			errs = append(errs, fmt.Errorf("outbox: shard %d: %w", q.shard, err))
		}
	}
	return errors.Join(errs...)
}

// relay sends a shard if no other relay has it.
func (r *Relay) relay(ctx context.Context, shard int) (err error) {
	owner, now := rand.Text(), r.Now()
	claimed, err := claim(ctx, r.DB, shard, owner, now)
	if err != nil || !claimed {
		return err
	}
	pause := rest // after a panic too
	defer func() { err = errors.Join(err, release(ctx, r.DB, shard, owner, r.Now().Add(pause))) }()
	if err = r.send(ctx, shard, now); err == nil {
		pause = 0
	}
	return err
}

// send publishes a shard's messages until there are none or the turn is over.
func (r *Relay) send(ctx context.Context, shard int, claimed time.Time) error {
	for ctx.Err() == nil {
		ids, list, err := unsent(ctx, r.DB, shard)
		if err != nil {
			return err
		}
		// The last look before what cannot be taken back: a relay that stalled past its lease is not the only one any more.
		if len(list) == 0 || r.Now().Sub(claimed) >= turn {
			return nil
		}
		if err := r.Publish(shard, list); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		if took := r.Now().Sub(claimed); took >= lease {
			r.Log.WarnContext(ctx, "the outbox relay's lease ended while it published; messages may go twice", "shard", shard, "took", took)
		}
		if err := mark(ctx, r.DB, ids, r.Now()); err != nil {
			return err
		}
		if len(list) < batch {
			return nil
		}
	}
	return nil
}

// queue is a shard that has unsent messages.
type queue struct {
	shard int
	since time.Time // when the oldest of them was owed
}

// waiting returns the shards that have unsent messages, the one that waits longest first. It looks at the first row of each shard
// (ix_shard_unsent): to group the unsent rows, MariaDB would read all of them in every round, and there are many when the broker
// was down.
func waiting(ctx context.Context, q mysqldb.Querier) ([]queue, error) {
	const first = `(SELECT id, shard, create_time FROM t_outbox WHERE sent_at IS NULL AND shard = ? ORDER BY id LIMIT 1)`
	var shards []any
	for shard := range Shards {
		shards = append(shards, shard)
	}
	scan := func(row mysqldb.Scanner) (w queue, err error) {
		var id int64
		err = row.Scan(&id, &w.shard, &w.since)
		return w, err
	}
	list, err := mysqldb.Collect(scan)(q.QueryContext(ctx, first+strings.Repeat(` UNION ALL `+first, Shards-1)+` ORDER BY id`, shards...))
	if err != nil {
		return nil, fmt.Errorf("outbox: look for unsent messages: %w", err)
	}
	return list, nil
}

// claim takes a shard whose lease is over, or that never had one. False: another relay has it.
func claim(ctx context.Context, db *mysqldb.DB, shard int, owner string, now time.Time) (bool, error) {
	claimed, err := mysqldb.Matched(db.ExecContext(ctx, `UPDATE t_relay_shard SET owner = ?, lease_until = ? WHERE shard = ? AND lease_until <= ?`,
		owner, now.Add(lease), shard, now))
	if err != nil {
		return false, fmt.Errorf("claim: %w", err)
	}
	if claimed {
		return true, nil
	}
	_, err = db.ExecContext(ctx, `INSERT INTO t_relay_shard (shard, owner, lease_until) VALUES (?, ?, ?)`, shard, owner, now.Add(lease))
	if mysqldb.IsDuplicate(err, "PRIMARY") {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("claim: %w", err)
	}
	return true, nil
}

// release ends a lease that is still the owner's. It does so at shutdown too, so that the next relay need not wait.
func release(ctx context.Context, db *mysqldb.DB, shard int, owner string, at time.Time) error {
	_, err := db.ExecContext(context.WithoutCancel(ctx), `UPDATE t_relay_shard SET lease_until = ? WHERE shard = ? AND owner = ?`, at, shard, owner)
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

// unsent returns the oldest messages of a shard that were not sent, with their rows' ids.
func unsent(ctx context.Context, q mysqldb.Querier, shard int) (ids []int64, list []Stored, err error) {
	withID := func(row mysqldb.Scanner) (m Stored, err error) {
		var id int64
		err = row.Scan(&id, &m.ID, &m.Topic, &m.Key, &m.Version, &m.Payload, &m.RequestID, &m.CreatedAt)
		ids = append(ids, id)
		return m, err
	}
	list, err = mysqldb.Collect(withID)(q.QueryContext(ctx,
		`SELECT id, `+columns+` FROM t_outbox WHERE sent_at IS NULL AND shard = ? ORDER BY id LIMIT ?`, shard, batch))
	if err != nil {
		return nil, nil, fmt.Errorf("read unsent messages: %w", err)
	}
	return ids, list, nil
}

// mark notes that messages were sent: these and no range, for a transaction may commit a lower id after a higher one was sent.
// It does so at shutdown too, for they have been sent. The transaction is for its retries: a deadlock with the rescue job must
// not let a hundred messages go twice.
func mark(ctx context.Context, db *mysqldb.DB, ids []int64, now time.Time) error {
	marks, args := mysqldb.In(ids, now)
	ctx = context.WithoutCancel(ctx)
	err := db.InTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE t_outbox SET sent_at = ? WHERE id IN (`+marks+`)`, args...)
		return err
	})
	if err != nil {
		return fmt.Errorf("mark messages as sent: %w", err)
	}
	return nil
}
