package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

func TestATroubleThatLastsIsLoggedOnceAMinute(t *testing.T) {
	log := &lines{Handler: slog.DiscardHandler, count: make(map[string]int)}
	logger := newLogger(slog.New(log)).(*quiet)
	clock := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	logger.said.now = func() time.Time { return clock }
	say := func() {
		logger.Error("read fail", errors.New("down"), nil)
	}
	say()
	clock = clock.Add(sayAgain - time.Nanosecond)
	say()
	logger.Error("xclaim fail", errors.New("down"), nil)
	logger.Error("stop reading", fmt.Errorf("read: %w", context.Canceled), nil)
	logger.Info("Subscribing", nil)
	if log.of("WARN read fail") != 1 || log.of("WARN xclaim fail") != 1 || log.of("DEBUG Subscribing") != 1 || len(log.count) != 3 {
		t.Errorf("logged %v", log.count)
	}
	clock = clock.Add(time.Nanosecond)
	say()
	if n := log.of("WARN read fail"); n != 2 {
		t.Errorf("logged %d times", n)
	}
}
