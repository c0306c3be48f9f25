package dedup

import (
	"context"
	"errors"
	"time"

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
		var errs []error
		for _, r := range list {
			if round.Err() != nil {
				break
			}
			errs = append(errs, s.retry(ctx, c, r, byID))
		}
		return errors.Join(errs...)
	})
}

func (s *Service) retry(ctx context.Context, c Consumer, was Record, messages map[string]outbox.Stored) error {
	held := s.hold(was)
	if was.Status == Processing {
		held.Tries++
		held.LastError = "the run that had it never came back"
	}
	if claimed, err := claim(ctx, s.DB, was, held); err != nil || !claimed {
		return err
	}
	m, ok := messages[was.MsgID]
	if !ok {
		held.LastError = "the message is not in the outbox any more"
		return s.bury(web.WithRequestID(ctx, "", s.Log), held)
	}
	ctx = web.WithRequestID(ctx, m.RequestID, s.Log)
	if held.Tries >= MaxTries {
		return s.bury(ctx, held)
	}
	return s.work(ctx, c, m, held)
}
