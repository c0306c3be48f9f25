package outbox

import (
	"context"
	"fmt"
	"time"

	"example.com/oncepay/internal/mysqldb"
)

// Retention is how long a message is kept after it was owed: as long as the answers to payments and refunds (contract section
// 1), so that whatever can still be asked again has its messages in the order's timeline. What depends on a message being
// there, such as the invariants, looks back no further.
const Retention = 720 * time.Hour

// cleanBatch is how many messages one statement removes. It keeps the locks short that writers and relays could meet, and the
// undo log small.
const cleanBatch = 500

// Clean removes messages past their retention. One that was not sent, or that a consumer has yet to record, stays however
// old it is.
func (r *Relay) Clean(ctx context.Context) error {
	for {
		ids, err := cleanable(ctx, r.DB, r.Now().Add(-Retention))
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return nil
		}
		// Asked again: what was settled may have been given back to a consumer since.
		marks, args := mysqldb.In(ids)
		_, err = r.DB.ExecContext(ctx, `DELETE FROM t_outbox WHERE next_look_at IS NULL AND id IN (`+marks+`)`, args...)
		if err != nil {
			return fmt.Errorf("outbox: remove old messages: %w", err)
		}
		if len(ids) < cleanBatch {
			return nil
		}
	}
}

// cleanable looks only at the settled messages that have been there longest (ix_look): the others are younger, and without this
// bound a round would read a month of messages to find that none is old enough.
func cleanable(ctx context.Context, q mysqldb.Querier, limit time.Time) ([]int64, error) {
	scan := func(row mysqldb.Scanner) (id int64, err error) { return id, row.Scan(&id) }
	ids, err := mysqldb.Collect(scan)(q.QueryContext(ctx, `
		SELECT id FROM (SELECT id, sent_at, create_time FROM t_outbox WHERE next_look_at IS NULL ORDER BY id LIMIT ?) AS oldest
		WHERE sent_at IS NOT NULL AND create_time <= ?`, cleanBatch, limit))
	if err != nil {
		return nil, fmt.Errorf("outbox: look for old messages: %w", err)
	}
	return ids, nil
}
