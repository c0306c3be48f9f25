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
	"hash/crc32"
	"time"

	"github.com/go-json-experiment/json"

	"example.com/oncepay/internal/mysqldb"
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
		INSERT INTO t_outbox (msg_id, topic, partition_key, version, payload, request_id, shard, next_look_at, create_time)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		m.ID, m.Topic, m.Key, m.Version, string(payload), web.RequestID(ctx), Shard(m.Key), now.Add(LookAfter), now)
	if err != nil {
		return fmt.Errorf("outbox: add %s: %w", m.ID, err)
	}
	return nil
}

// Shards is how many parts the outbox has. One relay at a time sends a part, in order; so this is also how many relays can
// work at once. Eight keep a few instances busy. More only on an empty outbox: a key must not change its shard.
const Shards = 8

// Shard is the part that messages of a key are in.
func Shard(key string) int { return int(crc32.ChecksumIEEE([]byte(key)) % Shards) }

// LookAfter is how old a message is when the rescue first looks whether its consumers have recorded it: a healthy broker takes
// well under a second, and what was lost must be rescued within the minute that the invariants allow.
const LookAfter = 20 * time.Second

// Stored is a message as it is kept and sent.
type Stored struct {
	ID        string
	Topic     string
	Key       string
	Version   int
	Payload   []byte // JSON
	RequestID string // of the request that caused it
	CreatedAt time.Time
}

const columns = `msg_id, topic, partition_key, version, payload, request_id, create_time`

func scan(row mysqldb.Scanner) (m Stored, err error) {
	err = row.Scan(&m.ID, &m.Topic, &m.Key, &m.Version, &m.Payload, &m.RequestID, &m.CreatedAt)
	return m, err
}

// Load returns those of the messages that are there, in the order in which they were owed.
func Load(ctx context.Context, q mysqldb.Querier, ids ...string) ([]Stored, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	marks, args := mysqldb.In(ids)
	list, err := mysqldb.Collect(scan)(q.QueryContext(ctx,
		`SELECT `+columns+` FROM t_outbox WHERE msg_id IN (`+marks+`) ORDER BY id`, args...))
	if err != nil {
		return nil, fmt.Errorf("outbox: load messages: %w", err)
	}
	return list, nil
}
