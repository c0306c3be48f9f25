package dedup

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"example.com/oncepay/internal/broker"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/outbox"
)

const (
	// firstSubscribe and lastSubscribe space the tries to subscribe: a broker that restarts is back in seconds, one that is gone
	// must not be hammered, and Rescue delivers meanwhile.
	firstSubscribe = 100 * time.Millisecond
	lastSubscribe  = 10 * time.Second
	// nackPause keeps a message that could not be recorded from coming again at once, over and over, while the database is down.
	nackPause = time.Second
)

// Run takes messages from the broker until ctx ends, then returns when the work in hand is finished. No broker error ends it.
func (s *Service) Run(ctx context.Context, b *broker.Broker) {
	var running sync.WaitGroup
	for _, c := range s.Consumers {
		for _, topic := range b.Topics {
			running.Go(func() { s.consume(ctx, b, c, topic) })
		}
	}
	running.Wait()
}

// consume subscribes, and again whenever the subscription ends.
func (s *Service) consume(ctx context.Context, b *broker.Broker, c Consumer, topic string) {
	wait := firstSubscribe
	for ctx.Err() == nil {
		err := s.safely(func() error {
			sub, err := b.Subscriber(c.Name)
			if err != nil {
				return err
			}
			defer sub.Close() // what it cannot close ends with the process
			ctx, cancel := context.WithCancel(ctx)
			defer cancel() // what Watermill began for this subscription ends with it
			messages, err := sub.Subscribe(ctx, topic)
			if err != nil {
				return err
			}
			for w := range messages {
				s.take(ctx, c, w)
				wait = firstSubscribe
			}
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		s.Log.Warn("a subscription ended and is made again", "consumer", c.Name, "broker_topic", topic, "in", wait, "error", err)
		pause(ctx, wait)
		wait = min(2*wait, lastSubscribe)
	}
}

// take delivers one message and acknowledges it when it is durable what became of it.
func (s *Service) take(ctx context.Context, c Consumer, w *message.Message) {
	m, err := broker.Decode(w)
	if err != nil || m.ID == "" || !fits(m.ID) || !fits(m.Key) {
		// Not ours as we sent it, and it would fail for ever. The outbox has the real one, and Rescue finds it.
		s.count(c.Name, metrics.Blocked)
		s.Log.Error("a message from the broker is not readable", "consumer", c.Name, "msg_id", mysqldb.Cut(w.UUID), "error", err)
		w.Ack()
		return
	}
	if !slices.Contains(c.Topics, m.Topic) {
		w.Ack()
		return
	}
	err = s.safely(func() error { return s.deliverOwed(ctx, c, m.ID) })
	if err != nil {
		s.Log.Error("a message could not be recorded and must come again", "consumer", c.Name, "msg_id", m.ID, "error", err)
		pause(ctx, nackPause)
		w.Nack()
		return
	}
	w.Ack()
}

// deliverOwed delivers a message as the outbox has it: a broker can be written to by others, and what was never owed, or says something
// else than what was, must have no effect.
func (s *Service) deliverOwed(ctx context.Context, c Consumer, id string) error {
	owed, err := outbox.Load(ctx, s.DB, id)
	if err != nil {
		return err
	}
	if len(owed) == 0 {
		s.count(c.Name, metrics.Blocked)
		s.Log.Error("a message from the broker was never owed", "consumer", c.Name, "msg_id", id)
		return nil
	}
	m := owed[0]
	if !slices.Contains(c.Topics, m.Topic) || m.CreatedAt.Before(s.since[subscription{c.Name, m.Topic}]) {
		return nil // of the time before the consumer was there
	}
	return s.Deliver(ctx, c, m)
}

// maxID is the width of the columns that keep a message's id and key.
const maxID = 64

// fits reports whether an id or key can stand in its column.
func fits(id string) bool {
	return len(id) <= maxID && !strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' })
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
