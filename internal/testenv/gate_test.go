package testenv_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/oncepay/internal/testenv"
)

func TestGateHoldsEverybodyUntilOpened(t *testing.T) {
	const parties = 50
	gate := testenv.NewGate(t)
	var passed atomic.Int32
	var running sync.WaitGroup
	for range parties {
		running.Go(func() {
			if err := gate.Enter(t.Context()); err != nil {
				t.Errorf("enter: %v", err)
			}
			passed.Add(1)
		})
	}
	gate.WaitEntered(t, parties)
	if n := passed.Load(); n != 0 {
		t.Errorf("%d passed the closed gate", n)
	}
	gate.Open()
	gate.Open()
	running.Wait()
	if n := passed.Load(); n != parties {
		t.Errorf("%d passed the open gate, want %d", n, parties)
	}
	if err := gate.Enter(t.Context()); err != nil {
		t.Errorf("enter an open gate: %v", err)
	}
}

func TestGateLetsGoWhenTheContextEnds(t *testing.T) {
	gate := testenv.NewGate(t)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { left <- gate.Enter(ctx) }()
	gate.WaitEntered(t, 1)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

func TestGateOpensAtTheEndOfItsTest(t *testing.T) {
	left := make(chan error, 1)
	t.Run("inner", func(t *testing.T) {
		gate := testenv.NewGate(t)
		go func() { left <- gate.Enter(context.Background()) }()
		gate.WaitEntered(t, 1)
	})
	if err := <-left; err != nil {
		t.Errorf("enter: %v", err)
	}
}

func TestTogetherReleasesAllAtOnce(t *testing.T) {
	const n = 20
	var inside sync.WaitGroup // passes only if all n are inside at the same time
	inside.Add(n)
	seen := make([]bool, n)
	testenv.Together(n, func(i int) {
		inside.Done()
		inside.Wait()
		seen[i] = true
	})
	for i, ok := range seen {
		if !ok {
			t.Errorf("f(%d) did not run to its end before Together returned", i)
		}
	}
}

func TestEventuallyStopsAtTheFirstSuccess(t *testing.T) {
	calls := 0
	testenv.Eventually(t, time.Minute, "third call", func() error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if calls != 3 {
		t.Errorf("%d calls, want 3", calls)
	}
}

// fatalTB records a failure instead of failing the test it stands for.
type fatalTB struct {
	testing.TB
	failed atomic.Bool
}

func (f *fatalTB) Helper()               {}
func (f *fatalTB) Errorf(string, ...any) { f.failed.Store(true) }
func (f *fatalTB) Fatalf(string, ...any) { f.failed.Store(true); panic(f) }

func TestEventuallyFailsAfterTheTimeout(t *testing.T) {
	fake := &fatalTB{TB: t}
	func() {
		defer func() { _ = recover() }() // Fatalf above
		testenv.Eventually(fake, time.Millisecond, "never", func() error { return errors.New("no") })
	}()
	if !fake.failed.Load() {
		t.Error("a condition that never held passed")
	}
}
