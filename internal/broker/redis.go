package broker

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/outbox"
)

const (
	// streamLength bounds each stream. A stream is only the way; what is cut off before a consumer read it, the rescue job brings.
	// With about half a kilobyte a message, all streams together stay near 40 MB: Redis evicts nothing (noeviction), so they must
	// not take the memory of tokens and locks.
	streamLength = 10_000
	// maxIdle is how long a message may stay with a consumer that does not acknowledge it before another gets it. It is past what
	// a consumer's transaction can take (lock waits of 3 s, statements of 6 s), and still before the rescue job's first look.
	maxIdle = 15 * time.Second
	// claimEvery is how often a consumer looks for such messages, which only a crash leaves.
	claimEvery = 5 * time.Second
	// block is how long a read waits at the server for a message; it comes back at once when there is one. Longer saves idle
	// round trips; this is also how long a read outlives its closed subscription.
	block = time.Second
	// resendAfter is the pause before a message that was refused (Nack) comes again. A consumer refuses what it could not even
	// record, so its database is down.
	resendAfter = 500 * time.Millisecond
)

// Redis carries messages in one stream for each shard. client stays its owner's; each subscribed consumer keeps one of its
// connections for each stream.
//
// Where two instances of a consumer read a stream, messages of one key may overtake each other. A subscription ends (its
// channel is closed) when Redis has lost the consumer group, as after FLUSHALL or a restart; the consumer then subscribes
// again. It outlives a Redis that is only away, in which time nobody can subscribe.
func Redis(client redis.UniversalClient, log *slog.Logger) *Broker {
	return newRedis(client, log, maxIdle, claimEvery)
}

func newRedis(client redis.UniversalClient, log *slog.Logger, maxIdle, claimEvery time.Duration) *Broker {
	shared, logger := sharedClient{client}, newLogger(log)
	publisher, _ := redisstream.NewPublisher(redisstream.PublisherConfig{ // it fails for want of a client only
		Client: shared, Marshaller: entry{}, DefaultMaxlen: streamLength,
	}, logger)
	b := &Broker{Topic: stream, Publisher: publisher, Close: publisher.Close}
	for shard := range outbox.Shards {
		b.Topics = append(b.Topics, stream(shard))
	}
	b.Subscriber = func(consumer string) (message.Subscriber, error) {
		return redisstream.NewSubscriber(redisstream.SubscriberConfig{
			Client: shared, Unmarshaller: entry{},
			ConsumerGroup: consumer, // the instance in it gets a random name
			OldestId:      "0",      // a group made again after FLUSHALL must not miss what was published before it
			MaxIdleTime:   maxIdle, ClaimInterval: claimEvery, BlockTime: block, NackResendSleep: resendAfter,
			DisableIndefiniteInitialBlock: true, // or the first read of an empty stream outlives its subscription for ever
			ShouldStopOnReadErrors:        groupGone,
		}, logger)
	}
	return b
}

// stream is the key of a shard's stream. The braces put it on a cluster's node by the shard alone.
func stream(shard int) string { return fmt.Sprintf("oncepay:events:{%d}", shard) }

// groupGone reports that only a new subscription can go on, as it makes the group again.
func groupGone(err error) bool { return redis.HasErrorPrefix(err, "NOGROUP") }

// sharedClient is the process's client as Watermill may use it.
type sharedClient struct{ redis.UniversalClient }

// Close does nothing: Watermill closes the client with the first subscriber, and others still need it.
func (sharedClient) Close() error { return nil }

// XPendingExt finds nothing pending where the group is gone. Watermill looks for pending messages before its first read, and
// again and again if that fails; only the read ends the subscription.
func (c sharedClient) XPendingExt(ctx context.Context, a *redis.XPendingExtArgs) *redis.XPendingExtCmd {
	cmd := c.UniversalClient.XPendingExt(ctx, a)
	if groupGone(cmd.Err()) {
		cmd.SetErr(nil)
	}
	return cmd
}

// The fields of a stream's entry beside the metadata.
const (
	fieldID      = "id"
	fieldPayload = "payload"
)

// entry is how a message stands in a stream: field by field, to be read with XRANGE too.
type entry struct{}

func (entry) Marshal(_ string, w *message.Message) (map[string]any, error) {
	values := map[string]any{fieldID: w.UUID, fieldPayload: []byte(w.Payload)}
	for name, value := range w.Metadata {
		values[name] = value
	}
	return values, nil
}

// Unmarshal never fails, as that would end the subscription: what is no message of ours becomes one that Decode refuses.
func (entry) Unmarshal(values map[string]any) (*message.Message, error) {
	w := message.NewMessage("", nil)
	for name, v := range values {
		value, _ := v.(string) // go-redis gives nothing else
		switch name {
		case fieldID:
			w.UUID = value
		case fieldPayload:
			w.Payload = message.Payload(value)
		default:
			w.Metadata[name] = value
		}
	}
	return w, nil
}
