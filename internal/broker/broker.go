// Package broker carries messages from the outbox's relays to the consumers. What stands behind it is chosen in one
// constructor: Redis Streams or Kafka, both through Watermill.
//
// Promise: none that the data layer relies on. A message may come twice, late, out of order or never; the consumers'
// dedup table, the versions and the rescue job make good for all of it.
package broker

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"example.com/oncepay/internal/outbox"
)

// Broker is a way from relays to consumers.
type Broker struct {
	// Topics are what a consumer reads. Messages of one key are all in one of them.
	Topics []string
	// Topic is where messages of a shard go.
	Topic func(shard int) string

	Publisher message.Publisher
	// Subscriber makes a consumer's end. Consumers of one name share the messages; each name gets all of them.
	Subscriber func(consumer string) (message.Subscriber, error)

	// Close ends publishing. Subscribers are closed by those who made them.
	Close func() error
}

// The names of a message's metadata.
const (
	metaTopic   = "topic"
	metaKey     = "key"
	metaVersion = "version"
	metaRequest = "request_id"
	metaCreated = "created_at"
)

// Publish sends messages of one shard in their order. An error leaves open which of them were sent.
func (b *Broker) Publish(shard int, list []outbox.Stored) error {
	messages := make([]*message.Message, len(list))
	for i, m := range list {
		messages[i] = encode(m)
	}
	return b.Publisher.Publish(b.Topic(shard), messages...)
}

func encode(m outbox.Stored) *message.Message {
	w := message.NewMessage(m.ID, m.Payload)
	w.Metadata = message.Metadata{
		metaTopic: m.Topic, metaKey: m.Key, metaVersion: strconv.Itoa(m.Version), metaRequest: m.RequestID,
		metaCreated: m.CreatedAt.UTC().Format(time.RFC3339Nano),
	}
	return w
}

// Decode reads a message that came from a broker, or says why it is none of ours.
func Decode(w *message.Message) (outbox.Stored, error) {
	if w.UUID == "" {
		return outbox.Stored{}, errors.New("broker: message without an id")
	}
	version, err := strconv.Atoi(w.Metadata.Get(metaVersion))
	if err != nil {
		return outbox.Stored{}, fmt.Errorf("broker: message %q has version %q: %w", w.UUID, w.Metadata.Get(metaVersion), err)
	}
	created, err := time.Parse(time.RFC3339Nano, w.Metadata.Get(metaCreated))
	if err != nil {
		return outbox.Stored{}, fmt.Errorf("broker: message %q: %w", w.UUID, err)
	}
	return outbox.Stored{
		ID: w.UUID, Topic: w.Metadata.Get(metaTopic), Key: w.Metadata.Get(metaKey), Version: version, Payload: w.Payload,
		RequestID: w.Metadata.Get(metaRequest), CreatedAt: created,
	}, nil
}
