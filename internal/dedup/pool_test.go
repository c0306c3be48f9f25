package dedup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

// backlog owes many messages and returns them.
func (f *fixture) backlog(n int) []outbox.Stored {
	f.t.Helper()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("m%03d", i)
	}
	return f.owe(ids...)
}

// asked is how often the consumer was given a message.
func (f *fixture) asked() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, times := range f.tries {
		n += times
	}
	return n
}

// A receiver that is down is asked by a few messages in a round; the others rest, and their tries are not used up. When it is back they
// all get through.
func TestAFailingConsumerIsNotAskedByAllOfItsMessages(t *testing.T) {
	f := newFixture(t)
	f.Consumers = []Consumer{f.caller()}
	f.register()
	const n = 5 * width
	f.backlog(n)
	f.failing(func(outbox.Stored) error { return errors.New("down") })
	f.advance(outbox.LookAfter)
	f.rescue()
	if asked := f.asked(); asked < width || asked > 2*width {
		t.Errorf("asked %d times in the first round, want about %d", asked, width)
	}
	f.wantCount(n, "SELECT COUNT(*) FROM t_message_dedup WHERE status = ? AND next_try_at > ?", Waiting, f.clock())
	f.advance(restFor)
	before := f.asked()
	f.retry()
	if asked := f.asked() - before; asked < width || asked > 2*width {
		t.Errorf("asked %d times in the next round, want about %d", asked, width)
	}
	f.wantCount(0, "SELECT COUNT(*) FROM t_message_dedup WHERE next_try_at <= ?", f.clock())
	f.wantCount(0, "SELECT COUNT(*) FROM t_message_dedup WHERE tries > 2")
	f.failing(nil)
	f.advance(time.Hour)
	f.retry()
	f.wantCount(n, "SELECT COUNT(*) FROM t_message_dedup WHERE status = ?", Done)
}

// A receiver that hangs holds up as many messages as a round works on at once, and no more than that.
func TestMessagesDoNotWaitForOneThatHangs(t *testing.T) {
	f := newFixture(t)
	f.Consumers = []Consumer{f.caller()}
	f.register()
	list := f.backlog(width)
	gate := testenv.NewGate(t)
	f.failing(func(m outbox.Stored) error {
		if m.ID == list[0].ID {
			return gate.Enter(context.Background())
		}
		return nil
	})
	f.advance(outbox.LookAfter)
	var rescue sync.WaitGroup
	rescue.Go(f.rescue)
	gate.WaitEntered(t, 1)
	f.eventually(width-1, "SELECT COUNT(*) FROM t_message_dedup WHERE status = ?", Done)
	gate.Open()
	rescue.Wait()
	f.wantCount(width, "SELECT COUNT(*) FROM t_message_dedup WHERE status = ?", Done)
}

// An instance that is configured without a consumer ends nothing for the others; a person does, by name.
func TestOnlyAPersonForgetsAConsumer(t *testing.T) {
	f := newFixture(t)
	f.Consumers = append(f.Consumers, f.caller())
	f.register()
	if err := f.on(f.DB).Register(t.Context()); err != nil { // without notify
		t.Fatal(err)
	}
	f.wantCount(1, "SELECT COUNT(*) FROM t_subscription WHERE consumer = 'notify'")
	for _, want := range []bool{true, false} {
		if known, err := Forget(t.Context(), f.DB, "notify"); err != nil || known != want {
			t.Errorf("forget: %v, %v; want %v", known, err, want)
		}
	}
	f.wantCount(1, "SELECT COUNT(*) FROM t_subscription")
}

// Whoever can write to the broker can make nothing happen: a message that was never owed has no effect, and one that was has the effect
// of what was owed.
func TestTheOutboxSaysWhatAMessageIs(t *testing.T) {
	f := newFixture(t)
	f.register()
	m := f.owe("owed")[0]
	var seen []string
	f.Consumers[0].Handle = nil
	f.Consumers[0].Call = func(_ context.Context, m outbox.Stored) error {
		seen = append(seen, m.ID+" "+string(m.Payload))
		return nil
	}
	changed, never := m, m
	changed.Payload, never.ID = []byte(`"something else"`), "never"
	for _, id := range []string{never.ID, changed.ID} {
		if err := f.deliverOwed(t.Context(), f.Consumers[0], id); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 1 || seen[0] != `owed "owed"` {
		t.Errorf("effects of %q, want that of what was owed", seen)
	}
	f.wantCount(1, "SELECT COUNT(*) FROM t_message_dedup")
}
