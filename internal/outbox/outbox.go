// Package outbox keeps the messages that a transaction owes in t_outbox, so that an effect and its message are both there
// or neither.
//
// Promise: a message has an id made from what happened, and the unique index uk_msg_id lets it be owed once. It is written
// in the transaction of its effect and sent later, at least once.
package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"example.com/oncepay/internal/web"
)

// Message is one fact for others.
type Message struct {
	ID      string // at most 64 of [A-Za-z0-9_.:-]; the same fact has the same id
	Topic   string // e.g. "order.paid"
	Key     string // messages of one key keep their order
	Version int    // of the thing it speaks of
	Payload any    // encoded as JSON
}

// Add owes a message. A second message with the same id is an error: the caller's own state check should have noticed.
func Add(ctx context.Context, tx *sql.Tx, m Message, now time.Time) error {
	payload, err := json.Marshal(m.Payload, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("outbox: encode %s: %w", m.ID, err)
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO t_outbox (msg_id, topic, partition_key, version, payload, request_id, create_time)
		VALUES (?, ?, ?, ?, ?, ?, ?)`,
		m.ID, m.Topic, m.Key, m.Version, string(payload), web.RequestID(ctx), now)
	if err != nil {
		return fmt.Errorf("outbox: add %s: %w", m.ID, err)
	}
	return nil
}
