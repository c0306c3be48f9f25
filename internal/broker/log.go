package broker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// sayAgain is how often one trouble is logged while it lasts. A broker that is down is met twice a second by every stream of
// every consumer, and the first line says it all.
const sayAgain = time.Minute

// newLogger makes Watermill log into log. Its own news is for debugging only. Its errors are warnings, as whatever fails here is
// tried again, and each text comes at most once in sayAgain; the end of a subscription that was asked for is none.
func newLogger(log *slog.Logger) watermill.LoggerAdapter {
	return &quiet{
		LoggerAdapter: watermill.NewSlogLoggerWithLevelMapping(log, map[slog.Level]slog.Level{
			slog.LevelInfo: slog.LevelDebug, slog.LevelError: slog.LevelWarn,
		}),
		said: &said{now: time.Now, last: make(map[string]time.Time)},
	}
}

type quiet struct {
	watermill.LoggerAdapter
	said *said
}

func (q *quiet) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return &quiet{LoggerAdapter: q.LoggerAdapter.With(fields), said: q.said}
}

func (q *quiet) Error(text string, err error, fields watermill.LogFields) {
	if errors.Is(err, context.Canceled) || !q.said.isNews(text) {
		return
	}
	q.LoggerAdapter.Error(text, err, fields)
}

// said remembers when each text was logged. The texts are Watermill's constants, so there are few.
type said struct {
	now  func() time.Time
	mu   sync.Mutex
	last map[string]time.Time
}

func (s *said) isNews(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if last, ok := s.last[text]; ok && now.Sub(last) < sayAgain {
		return false
	}
	s.last[text] = now
	return true
}
