package dedup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/web"
)

const (
	// retryBatch is how many messages of a consumer one round takes; the next round comes in a second.
	retryBatch = 100
	// roundLimit is when a round begins no further message: a consumer that hangs must not keep the others' next round waiting.
	roundLimit = 5 * time.Second
)

// Retry tries again what waits and is due, and what is held by runs whose lease has ended; such a run counts as a failed try.
func (s *Service) Retry(ctx context.Context) error {
	round, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	return s.forEach(func(c Consumer) error {
		list, err := due(ctx, s.DB, c.Name, s.Now(), retryBatch)
		if err != nil {
			return err
		}
		ids := make([]string, len(list))
		for i, r := range list {
			ids[i] = r.MsgID
		}
		messages, err := outbox.Load(ctx, s.DB, ids...)
		if err != nil {
			return err
		}
		byID := make(map[string]outbox.Stored, len(messages))
		for _, m := range messages {
			byID[m.ID] = m
		}
		_, failing, err := s.each(round, len(list), func(i int) (bool, error) { return s.retry(ctx, c, list[i], byID) })
		if failing {
			s.Log.Warn("a consumer fails; its messages rest", "consumer", c.Name, "for", restFor)
			err = errors.Join(err, rest(ctx, s.DB, c.Name, s.Now()))
		}
		return err
	})
}

// rest puts the next try of a consumer's due messages off.
func rest(ctx context.Context, db *mysqldb.DB, consumer string, now time.Time) error {
	_, err := db.ExecContext(ctx, `UPDATE t_message_dedup SET next_try_at = ? WHERE next_try_at <= ? AND consumer = ? AND status = ?`,
		now.Add(restFor), now, consumer, Waiting)
	if err != nil {
		return fmt.Errorf("let the messages of %s rest: %w", consumer, err)
	}
	return nil
}

// retry tries a message once more, and reports whether it went through.
func (s *Service) retry(ctx context.Context, c Consumer, was Record, messages map[string]outbox.Stored) (through bool, err error) {
	held := s.hold(was)
	if was.Status == Processing {
		held.Tries++
		held.LastError = "the run that had it never came back"
	}
	if claimed, err := claim(ctx, s.DB, was, held); err != nil || !claimed {
		return true, err // another run has it
	}
	m, ok := messages[was.MsgID]
	if !ok {
		held.LastError = "the message is not in the outbox any more"
		return true, s.bury(web.WithRequestID(ctx, "", s.Log), held)
	}
	ctx = web.WithRequestID(ctx, m.RequestID, s.Log)
	if held.Tries >= MaxTries {
		return false, s.bury(ctx, held)
	}
	return s.work(ctx, c, m, held)
}
