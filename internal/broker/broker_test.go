package broker

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience ends a wait for something that should have happened long ago.
const patience = 20 * time.Second

// server is a broker of a test's own.
type server struct {
	*Broker
	poison  func(shard int)              // puts in something that is no message of ours
	settled func(consumer string, n int) // waits until all n instances of a consumer get their share
}

// onEach runs a test on every kind of broker.
func onEach(t *testing.T, test func(t *testing.T, s *server)) {
	t.Run("redis", func(t *testing.T) { test(t, onRedis(t, maxIdle, claimEvery)) })
	t.Run("kafka", func(t *testing.T) { test(t, onKafka(t)) })
}

func stored(key string, version int) outbox.Stored {
	return outbox.Stored{
		ID: fmt.Sprint(key, ":", version), Topic: "order.paid", Key: key, Version: version, Payload: []byte(`{"a":"é😀'\\"}`),
		RequestID: "req-1", CreatedAt: time.Date(2026, 5, 1, 12, 0, 0, 999999000, time.UTC),
	}
}

func publish(t *testing.T, b *Broker, list ...outbox.Stored) {
	t.Helper()
	for _, m := range list {
		if err := b.Publish(outbox.Shard(m.Key), []outbox.Stored{m}); err != nil {
			t.Fatal(err)
		}
	}
}

// reader is one instance of a consumer.
type reader struct {
	t     *testing.T
	sub   message.Subscriber
	in    chan *message.Message
	ended chan string // topics whose subscription has ended
}

func join(t *testing.T, b *Broker, consumer string) *reader {
	t.Helper()
	sub, err := b.Subscriber(consumer)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, sub: sub, in: make(chan *message.Message), ended: make(chan string, len(b.Topics))}
	for _, topic := range b.Topics {
		r.subscribe(topic)
	}
	t.Cleanup(r.leave)
	return r
}

func (r *reader) subscribe(topic string) {
	r.t.Helper()
	ctx := r.t.Context()
	messages, err := r.sub.Subscribe(ctx, topic)
	if err != nil {
		r.t.Fatal(err)
	}
	go func() {
		for w := range messages {
			select {
			case r.in <- w:
			case <-ctx.Done():
			}
		}
		r.ended <- topic
	}()
}

// leave ends the reader. What it has taken and not acknowledged stays so.
func (r *reader) leave() {
	if err := r.sub.Close(); err != nil {
		r.t.Error(err)
	}
}

// take returns the next message, which is still to be acknowledged.
func (r *reader) take() *message.Message {
	r.t.Helper()
	select {
	case w := <-r.in:
		return w
	case <-time.After(patience):
		r.t.Fatal("no message came")
		return nil
	}
}

// next acknowledges the next message.
func (r *reader) next() outbox.Stored {
	r.t.Helper()
	w := r.take()
	defer w.Ack()
	m, err := Decode(w)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

func (r *reader) want(list ...outbox.Stored) {
	r.t.Helper()
	for _, m := range list {
		if got := r.next(); !reflect.DeepEqual(got, m) {
			r.t.Errorf("got %+v, want %+v", got, m)
		}
	}
}

func TestEveryConsumerGetsEveryMessageAsItWasSent(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		first := join(t, s.Broker, "coupons")
		for v := range 3 {
			m := stored("a", v)
			publish(t, s.Broker, m)
			first.want(m)
		}
		join(t, s.Broker, "points").want(stored("a", 0), stored("a", 1), stored("a", 2)) // it came later
	})
}

func TestInstancesOfAConsumerShareTheMessages(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		const n = 60
		readers := []*reader{join(t, s.Broker, "coupons"), join(t, s.Broker, "coupons")}
		s.settled("coupons", len(readers))
		ctx, stop := context.WithCancel(t.Context())
		var mu sync.Mutex
		var got []string
		var running sync.WaitGroup
		for _, r := range readers {
			running.Go(func() {
				for {
					select {
					case w := <-r.in:
						mu.Lock()
						got = append(got, w.UUID)
						mu.Unlock()
						w.Ack()
					case <-ctx.Done():
						return
					}
				}
			})
		}
		var want []string
		for i := range n {
			m := stored(fmt.Sprintf("key-%02d", i), 1)
			publish(t, s.Broker, m)
			want = append(want, m.ID)
		}
		testenv.Eventually(t, patience, "all have come", func() error {
			mu.Lock()
			defer mu.Unlock()
			if len(got) < n {
				return fmt.Errorf("%d have", len(got))
			}
			return nil
		})
		stop()
		running.Wait()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want each of %d messages once", got, n)
		}
	})
}

func TestAMessageThatWasRefusedComesAgain(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		r := join(t, s.Broker, "coupons")
		publish(t, s.Broker, stored("a", 1), stored("a", 2))
		for range 2 {
			if w := r.take(); w.UUID != "a:1" || !w.Nack() {
				t.Fatalf("got %s", w.UUID)
			}
		}
		r.want(stored("a", 1), stored("a", 2))
	})
}

// B111: the consumer is killed after receipt.
func TestWhatADeadConsumerDidNotAcknowledgeAnotherGets(t *testing.T) {
	test := func(t *testing.T, s *server) {
		dead := join(t, s.Broker, "coupons")
		publish(t, s.Broker, stored("a", 1), stored("a", 2))
		dead.want(stored("a", 1))
		if w := dead.take(); w.UUID != "a:2" {
			t.Fatalf("got %s", w.UUID)
		}
		dead.leave()
		r := join(t, s.Broker, "coupons")
		r.want(stored("a", 2))
		publish(t, s.Broker, stored("a", 3))
		r.want(stored("a", 3))
	}
	t.Run("redis", func(t *testing.T) { test(t, onRedis(t, 200*time.Millisecond, 50*time.Millisecond)) })
	t.Run("kafka", func(t *testing.T) { test(t, onKafka(t)) })
}

func TestMessagesOfAKeyComeInOrder(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		const keys, versions = 10, 20
		r := join(t, s.Broker, "coupons")
		for v := range versions {
			for k := range keys {
				publish(t, s.Broker, stored(fmt.Sprint("key-", k), v+1))
			}
		}
		last := make(map[string]int)
		for range keys * versions {
			m := r.next()
			if m.Version != last[m.Key]+1 {
				t.Errorf("%s came after version %d", m.ID, last[m.Key])
			}
			last[m.Key] = m.Version
		}
	})
}

// B111: what cannot be read blocks nothing.
func TestAnEntryThatIsNoMessageBlocksNoOther(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		m := stored("a", 1)
		s.poison(outbox.Shard(m.Key))
		publish(t, s.Broker, m)
		r := join(t, s.Broker, "coupons")
		for refused := 0; ; refused++ {
			w := r.take()
			w.Ack()
			got, err := Decode(w)
			if err != nil {
				continue
			}
			if refused == 0 || !reflect.DeepEqual(got, m) {
				t.Errorf("got %+v after %d refused", got, refused)
			}
			return
		}
	})
}

func TestWhatIsNoMessageOfOursIsNotDecoded(t *testing.T) {
	for name, spoil := range map[string]func(w *message.Message){
		"no id":        func(w *message.Message) { w.UUID = "" },
		"no version":   func(w *message.Message) { delete(w.Metadata, metaVersion) },
		"version of x": func(w *message.Message) { w.Metadata[metaVersion] = "x" },
		"no time":      func(w *message.Message) { delete(w.Metadata, metaCreated) },
	} {
		w := encode(stored("a", 1))
		spoil(w)
		if m, err := Decode(w); err == nil {
			t.Errorf("%s: got %+v", name, m)
		}
	}
}

// wantError is for publishes while the broker is down.
func wantError(t *testing.T, b *Broker) {
	t.Helper()
	if err := b.Publish(0, []outbox.Stored{stored("a", 1)}); err == nil {
		t.Error("published while the broker is down")
	}
}

// wantEnded waits for the end of n subscriptions and returns their topics.
func (r *reader) wantEnded(n int) (topics []string) {
	r.t.Helper()
	for range n {
		select {
		case topic := <-r.ended:
			topics = append(topics, topic)
		case <-time.After(patience):
			r.t.Fatal("a subscription goes on")
		}
	}
	return topics
}
