package dedup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"example.com/oncepay/internal/broker"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

// memory is a broker in this process. It forgets what nobody has subscribed to.
type memory struct {
	*broker.Broker
	mu         sync.Mutex
	channel    *gochannel.GoChannel
	subscribed int
	refuse     int // this many subscriptions fail
	nacked     atomic.Int32
}

func newMemory(t *testing.T) *memory {
	b := &memory{}
	b.restart()
	t.Cleanup(func() { b.channel.Close() })
	b.Broker = &broker.Broker{Topics: []string{"shop"}, Topic: func(int) string { return "shop" }, Publisher: b, Subscriber: func(string) (message.Subscriber, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.refuse--; b.refuse >= 0 {
			return nil, errors.New("not now")
		}
		return end{b}, nil
	}}
	return b
}

func (b *memory) restart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.channel != nil {
		b.channel.Close()
	}
	b.channel = gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
}

func (b *memory) current() *gochannel.GoChannel {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.channel
}

// Publish and Close make the memory a publisher.
func (b *memory) Publish(topic string, messages ...*message.Message) error {
	return b.current().Publish(topic, messages...)
}

func (b *memory) Close() error { return nil }

// end is one consumer's end.
type end struct{ b *memory }

func (e end) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	messages, err := e.b.current().Subscribe(ctx, topic)
	watched := make(chan *message.Message)
	go func() {
		defer close(watched)
		for m := range messages {
			go func() {
				select {
				case <-m.Nacked():
					e.b.nacked.Add(1)
				case <-m.Acked():
				}
			}()
			watched <- m
		}
	}()
	e.b.mu.Lock()
	defer e.b.mu.Unlock()
	e.b.subscribed++
	return watched, err
}

func (e end) Close() error { return nil }

// run starts Run and waits until it has subscribed. stop ends it and waits.
func (f *fixture) run(s *Service, b *memory) (stop func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx, b.Broker) }()
	stop = func() { cancel(); <-done }
	f.t.Cleanup(stop)
	b.waitSubscribed(f.t, 1)
	return stop
}

func (b *memory) waitSubscribed(t testing.TB, n int) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, "subscription", func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.subscribed < n {
			return fmt.Errorf("%d subscriptions", b.subscribed)
		}
		return nil
	})
}

// send publishes messages as the relay does.
func (b *memory) send(t *testing.T, list ...outbox.Stored) {
	t.Helper()
	if err := b.Broker.Publish(0, list); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) eventually(want int, query string, args ...any) {
	f.t.Helper()
	testenv.Eventually(f.t, 10*time.Second, query, func() error {
		if n := f.count(query, args...); n != want {
			return fmt.Errorf("%d, want %d", n, want)
		}
		return nil
	})
}

// B20: a batch with the same message twice, a known, a new, a failing, a panicking, an unreadable, an impossible and an unwanted
// one: one effect each of those that can have one, and none touches the others.
func TestOneMessageOfABatchTouchesNoOther(t *testing.T) {
	f := newFixture(t)
	list := f.owe("known", "twice", "failing", "panicking", "new", "last")
	f.deliver(list[0])
	f.failing(func(m outbox.Stored) error {
		switch m.ID {
		case "failing":
			return errors.New("broken")
		case "panicking":
			panic("at the disco")
		}
		return nil
	})
	b := newMemory(t)
	f.run(f.Service, b)
	unwanted := outbox.Stored{ID: "unwanted", Topic: "order.created", Key: orderKey}
	impossible := outbox.Stored{ID: "an id is no sentence", Topic: topic, Key: orderKey}
	batch := []outbox.Stored{list[1], list[0], impossible, list[1], list[2], unwanted, list[3], list[4], list[5]}
	if err := b.Publish("shop", message.NewMessage("unreadable", nil)); err != nil {
		t.Fatal(err)
	}
	b.send(t, batch...)
	f.eventually(4, "SELECT COUNT(*) FROM effect")
	f.eventually(2, "SELECT COUNT(*) FROM t_message_dedup WHERE status = ? AND tries = 1 AND msg_id IN ('failing', 'panicking')", Waiting)
	testenv.Eventually(t, 10*time.Second, "three repeats or refusals", func() error {
		if r, x := hits(f.Service, f.Consumers[0], metrics.Replayed), hits(f.Service, f.Consumers[0], metrics.Blocked); r != 2 || x != 2 {
			return fmt.Errorf("%v repeats, %v unreadable", r, x)
		}
		return nil
	})
	for _, i := range []int{0, 1, 4, 5} {
		f.wantOnce(list[i])
	}
	f.wantCount(6, "SELECT COUNT(*) FROM t_message_dedup")
}

// What cannot be recorded is not acknowledged, and comes again.
func TestAMessageComesAgainUntilItIsRecorded(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
	s := f.on(testenv.OpenDB(t, dsn))
	b := newMemory(t)
	f.run(s, b)
	proxy.Down()
	b.send(t, m)
	testenv.Eventually(t, 10*time.Second, "a refused message", func() error {
		if b.nacked.Load() == 0 {
			return errors.New("none")
		}
		return nil
	})
	proxy.Up()
	f.eventually(1, "SELECT COUNT(*) FROM effect")
	f.wantOnce(m)
}

// A subscription that cannot be made, or that ends, is made again.
func TestASubscriptionThatEndsIsMadeAgain(t *testing.T) {
	f := newFixture(t)
	list := f.owe("m1", "m2")
	b := newMemory(t)
	b.refuse = 1
	stop := f.run(f.Service, b)
	b.send(t, list[0])
	f.eventually(1, "SELECT COUNT(*) FROM effect")
	b.restart()
	b.waitSubscribed(t, 2)
	b.send(t, list[1])
	f.eventually(2, "SELECT COUNT(*) FROM effect")
	stop()
}

// A stop waits for the work in hand.
func TestAStopWaitsForTheWorkInHand(t *testing.T) {
	f := newFixture(t)
	m := f.owe("m1")[0]
	gate := testenv.NewGate(t)
	f.failing(func(outbox.Stored) error { return gate.Enter(context.Background()) })
	b := newMemory(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx, b.Broker) }()
	b.waitSubscribed(t, 1)
	b.send(t, m)
	gate.WaitEntered(t, 1)
	cancel()
	select {
	case <-done:
		t.Error("Run returned with work in hand")
	default:
	}
	gate.Open()
	<-done
	f.wantOnce(m)
}

// A broker that still has messages of the time before a consumer was there brings it none of them.
func TestAConsumerIsNotOwedWhatWasBeforeIt(t *testing.T) {
	f := newFixture(t)
	before := f.owe("before")[0]
	f.advance(time.Microsecond)
	f.register()
	after := f.owe("after")[0]
	b := newMemory(t)
	f.run(f.Service, b)
	b.send(t, before, after)
	f.eventually(1, "SELECT COUNT(*) FROM effect WHERE msg_id = 'after'")
	f.wantCount(1, "SELECT COUNT(*) FROM t_message_dedup")
}
