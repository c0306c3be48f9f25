package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

var errDown = errors.New("the broker is down")

// fixture is an outbox, a clock, and a broker that notes what it gets.
type fixture struct {
	t   *testing.T
	dsn string
	db  *mysqldb.DB

	mu    sync.Mutex
	clock time.Time
	got   []Stored
	ages  []time.Duration
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	dsn := testenv.Database(t)
	return &fixture{t: t, dsn: dsn, db: testenv.OpenDB(t, dsn), clock: now()}
}

func (f *fixture) now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clock
}

func (f *fixture) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock = f.clock.Add(d)
}

func (f *fixture) take(list []Stored) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = append(f.got, list...)
}

// relay makes a relay on an instance of its own. outcomes are what its first publishes come to once the broker has the messages;
// those after them succeed.
func (f *fixture) relay(outcomes ...func() error) *Relay {
	f.t.Helper()
	return f.relayAt(f.dsn, outcomes...)
}

func (f *fixture) relayAt(dsn string, outcomes ...func() error) *Relay {
	f.t.Helper()
	return &Relay{
		DB: testenv.OpenDB(f.t, dsn), Now: f.now, Log: slog.New(slog.DiscardHandler),
		Publish: func(_ int, list []Stored) error {
			f.take(list)
			if len(outcomes) == 0 {
				return nil
			}
			outcome := outcomes[0]
			outcomes = outcomes[1:]
			return outcome()
		},
		Oldest: func(age time.Duration) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.ages = append(f.ages, age)
		},
	}
}

func (f *fixture) owe(key string, versions ...int) {
	f.t.Helper()
	if err := f.tryOwe(key, versions...); err != nil {
		f.t.Fatal(err)
	}
}

// tryOwe owes messages of one key in one transaction. It may be called from any goroutine.
func (f *fixture) tryOwe(key string, versions ...int) error {
	ctx := context.Background()
	return f.db.InTx(ctx, func(tx *sql.Tx) error {
		for _, v := range versions {
			if err := Add(ctx, tx, Message{ID: id(key, v), Topic: "t", Key: key, Version: v}, f.now()); err != nil {
				return err
			}
		}
		return nil
	})
}

func id(key string, version int) string { return fmt.Sprintf("%s:%d", key, version) }

// ids names the messages of one key.
func ids(key string, versions ...int) (list []string) {
	for _, v := range versions {
		list = append(list, id(key, v))
	}
	return list
}

// upTo is 1, 2, ..., n.
func upTo(n int) (list []int) {
	for v := range n {
		list = append(list, v+1)
	}
	return list
}

func (f *fixture) round(r *Relay) {
	f.t.Helper()
	if err := r.Round(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// want compares what the broker has got since the last want.
func (f *fixture) want(messages ...string) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var got []string
	for _, m := range f.got {
		got = append(got, m.ID)
	}
	if !slices.Equal(got, messages) {
		f.t.Errorf("the broker has got %q, want %q", got, messages)
	}
	f.got = nil
}

// wantUnsent compares how many messages are not marked as sent.
func (f *fixture) wantUnsent(want int) {
	f.t.Helper()
	if n := f.unsent(); n != want {
		f.t.Errorf("%d messages are unsent, want %d", n, want)
	}
}

func (f *fixture) unsent() (n int) {
	f.t.Helper()
	if err := f.db.QueryRowContext(f.t.Context(), "SELECT COUNT(*) FROM t_outbox WHERE sent_at IS NULL").Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// keyA and keyB are in different shards.
const keyA, keyB = "a", "b"

func TestTheTestsKeysAreInTwoShards(t *testing.T) {
	if Shard(keyA) == Shard(keyB) {
		t.Error("they are in one")
	}
}

func TestARelaySendsWhatIsOwedOnceAndInOrder(t *testing.T) {
	f := newFixture(t)
	f.owe(keyA, 1, 2)
	f.owe(keyB, 1)
	f.owe(keyA, 3)
	r := f.relay()
	f.round(r)
	f.want(append(ids(keyA, 1, 2, 3), ids(keyB, 1)...)...)
	f.owe(keyB, 2)
	f.round(r)
	f.round(r)
	f.want(ids(keyB, 2)...)
	f.wantUnsent(0)
}

// Each message exactly once and those of a key in order, while four relays and sixteen writers are at work.
func TestRelaysAtTheSameTimeSendEverythingOnceAndInOrder(t *testing.T) {
	f := newFixture(t)
	const writers, each, relays = 16, 30, 4
	var all []*Relay
	for range relays {
		all = append(all, f.relay())
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, r := range all {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := r.Round(ctx); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	testenv.Together(writers, func(i int) {
		for v := range each {
			if err := f.tryOwe(fmt.Sprint("key-", i), v+1); err != nil {
				t.Error(err)
			}
		}
	})
	testenv.Eventually(t, time.Minute, "everything is sent", func() error {
		if n := f.unsent(); n != 0 {
			return fmt.Errorf("%d are not", n)
		}
		return nil
	})
	stop()
	running.Wait()
	last := make(map[string]int)
	for _, m := range f.got {
		if m.Version != last[m.Key]+1 {
			t.Errorf("%s came after version %d", m.ID, last[m.Key])
		}
		last[m.Key] = m.Version
	}
	if len(last) != writers || len(f.got) != writers*each {
		t.Errorf("%d messages of %d keys, want %d of %d", len(f.got), len(last), writers*each, writers)
	}
}

func TestAShardIsOneRelaysAtATimeAndTheOthersAreFree(t *testing.T) {
	f := newFixture(t)
	f.owe(keyA, 1)
	inside := testenv.NewGate(t)
	slow, done := f.relay(func() error { return inside.Enter(t.Context()) }), make(chan error, 1)
	go func() { done <- slow.Round(t.Context()) }()
	inside.WaitEntered(t, 1)
	f.want(ids(keyA, 1)...)
	f.owe(keyB, 1)
	f.owe(keyA, 2)
	f.round(f.relay())
	f.want(ids(keyB, 1)...)
	inside.Open()
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.round(f.relay()) // the lease is over with the round, not with its time
	f.want(ids(keyA, 2)...)
}

// A row takes its id when it is written and is seen when it commits.
func TestAMessageThatCommitsAfterALaterOneIsSent(t *testing.T) {
	f := newFixture(t)
	tx, err := f.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := Add(t.Context(), tx, Message{ID: id(keyA, 1), Topic: "t", Key: keyA, Version: 1}, f.now()); err != nil {
		t.Fatal(err)
	}
	f.owe(keyA, 2)
	r := f.relay(tx.Commit) // between the relay's read and its mark
	f.round(r)
	f.want(ids(keyA, 2)...)
	f.wantUnsent(1)
	f.round(r)
	f.want(ids(keyA, 1)...)
	f.wantUnsent(0)
}

// B111, B110: the broker is down between commit and send.
func TestMessagesOutliveABrokerThatIsDown(t *testing.T) {
	f := newFixture(t)
	f.owe(keyA, 1, 2)
	f.owe(keyB, 1)
	r := f.relay(func() error { return errDown })
	if err := r.Round(t.Context()); !errors.Is(err, errDown) {
		t.Errorf("got %v", err)
	}
	f.want(append(ids(keyA, 1, 2), ids(keyB, 1)...)...) // the failed shard does not keep the other
	f.wantUnsent(2)
	for range 2 { // neither this relay nor another asks again at once
		f.round(r)
		r = f.relay()
	}
	f.want()
	f.pass(rest)
	f.round(r)
	f.want(ids(keyA, 1, 2)...)
	f.wantUnsent(0)
}

// B111: the relay is killed between send and mark.
func TestAnotherRelaySendsAgainWhatADeadOneDidNotMark(t *testing.T) {
	f := newFixture(t)
	proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
	dying, other := f.relayAt(dsn, func() error { return nil }, func() error { proxy.Down(); return nil }), f.relay()
	f.owe(keyA, 1)
	f.round(dying)
	f.want(ids(keyA, 1)...)
	f.owe(keyA, 2, 3)
	if err := dying.Round(t.Context()); err == nil {
		t.Error("no error")
	}
	f.want(ids(keyA, 2, 3)...)
	f.pass(lease - time.Microsecond)
	f.round(other)
	f.want()
	f.pass(time.Microsecond)
	f.round(other)
	f.want(ids(keyA, 2, 3)...)
	f.wantUnsent(0)
}

func TestARelayThatStallsStopsAndDisturbsNoOther(t *testing.T) {
	f := newFixture(t)
	f.owe(keyA, upTo(batch+1)...)
	inside := testenv.NewGate(t)
	second, done := f.relay(func() error { return inside.Enter(t.Context()) }), make(chan error, 1)
	stalled := f.relay(func() error {
		f.pass(lease)
		go func() { done <- second.Round(t.Context()) }()
		inside.WaitEntered(t, 1)
		return nil
	})
	f.round(stalled)
	f.want(append(ids(keyA, upTo(batch)...), ids(keyA, upTo(batch)...)...)...) // at least once, and no further batch
	f.round(f.relay())
	f.want() // the second relay's lease is not the first one's to end
	inside.Open()
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.want(ids(keyA, batch+1)...)
	f.wantUnsent(0)
}

func TestALongQueueTakesTurnsWithTheOthers(t *testing.T) {
	f := newFixture(t)
	f.owe(keyA, upTo(3*batch)...)
	f.owe(keyB, 1)
	r := f.relay(func() error { return nil }, func() error { f.pass(turn); return nil })
	f.round(r)
	f.want(append(ids(keyA, upTo(2*batch)...), ids(keyB, 1)...)...)
	f.round(r)
	f.want(ids(keyA, upTo(3 * batch)[2*batch:]...)...)
}

func TestWhatWasSentIsMarkedThoughTheProcessEnds(t *testing.T) {
	f := newFixture(t)
	f.owe(keyA, upTo(batch+1)...)
	ctx, stop := context.WithCancel(t.Context())
	if err := f.relay(func() error { stop(); return nil }).Round(ctx); err != nil {
		t.Error(err)
	}
	f.want(ids(keyA, upTo(batch)...)...)
	f.wantUnsent(1)
	f.round(f.relay()) // the shard is free
	f.want(ids(keyA, batch+1)...)
}

// B64: the panic is the job's to catch; the shard must not be lost with it.
func TestAPanicWhilePublishingGivesTheShardBack(t *testing.T) {
	f := newFixture(t)
	f.owe(keyA, 1)
	r := f.relay(func() error { panic("broken") })
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_ = r.Round(t.Context()) // it panics
	}()
	f.wantUnsent(1)
	f.pass(rest)
	f.round(r)
	f.want(append(ids(keyA, 1), ids(keyA, 1)...)...)
	f.wantUnsent(0)
}

func TestEveryRoundTellsHowOldTheOldestUnsentMessageIs(t *testing.T) {
	f := newFixture(t)
	f.owe(keyA, 1)
	f.pass(3 * time.Second)
	f.owe(keyB, 1)
	f.pass(4 * time.Second)
	f.round(f.relay())
	f.round(f.relay())
	if want := []time.Duration{7 * time.Second, 0}; !slices.Equal(f.ages, want) {
		t.Errorf("ages %v, want %v", f.ages, want)
	}
}
