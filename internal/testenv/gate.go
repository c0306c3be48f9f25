package testenv

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

const (
	// waitLimit ends a wait for a signal that does not come. A healthy run needs
	// milliseconds; 20 s leaves room for a loaded two-core CI machine under -race.
	waitLimit = 20 * time.Second

	// pollEvery is short beside any timeout a test names, and long enough that
	// polling a database does not disturb the run that is being watched.
	pollEvery = 5 * time.Millisecond
)

// Gate is a barrier: parties stop at it until the test opens it. It opens once
// and stays open.
type Gate struct {
	entered counter
	once    sync.Once
	open    chan struct{}
}

// NewGate returns a closed gate. It opens by itself at the end of the test, so
// that a failed test leaves nobody waiting.
func NewGate(t testing.TB) *Gate {
	g := &Gate{open: make(chan struct{})}
	t.Cleanup(g.Open)
	return g
}

// Enter is the party's side: it blocks until the gate is open. It returns an
// error if ctx ends first.
func (g *Gate) Enter(ctx context.Context) error {
	g.entered.add()
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait at gate: %w", context.Cause(ctx))
	}
}

// WaitEntered blocks until n parties in all have come to the gate, gone or not.
// It fails the test if they do not come, so call it from the test's goroutine.
func (g *Gate) WaitEntered(t testing.TB, n int) {
	t.Helper()
	g.entered.wait(t, n, "parties at the gate")
}

// Open lets everybody through, now and later. Opening twice is harmless.
func (g *Gate) Open() {
	g.once.Do(func() { close(g.open) })
}

// Together runs f(0) to f(n-1) in n goroutines that are released at the same
// moment, and returns when all of them have. f must not call t.Fatal, which
// works in the test's own goroutine only.
func Together(n int, f func(i int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			<-start
			f(i)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
}

// Eventually polls check until it returns nil, and fails the test with its last
// error if that does not happen within timeout. It is for conditions that give no
// signal, such as a row that a background job writes; what names the condition.
func Eventually(t testing.TB, timeout time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, timeout, err)
		}
		time.Sleep(pollEvery)
	}
}

// counter counts up and wakes those who wait for a number.
type counter struct {
	mu      sync.Mutex
	n       int
	changed chan struct{} // closed at the next step; nil while nobody waits
}

func (c *counter) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

func (c *counter) value() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// next returns the present number and a channel that is closed at the next step.
func (c *counter) next() (int, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.n, c.changed
}

func (c *counter) wait(t testing.TB, n int, what string) {
	t.Helper()
	limit := time.NewTimer(waitLimit)
	defer limit.Stop()
	for {
		have, changed := c.next()
		if have >= n {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			t.Fatalf("%s: %d after %s, want %d", what, have, waitLimit, n)
		}
	}
}
