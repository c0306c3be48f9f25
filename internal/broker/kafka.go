package broker

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
)

// kafkaTopic is the one topic. Its partitions take the shards' place: more of them let more instances of a consumer work.
const kafkaTopic = "oncepay.events"

const (
	// kafkaTimeout bounds each request of a publish. With one repeat of each, a publish that fails does so within the relay's
	// lease. A consumer's requests are not bounded by it: joining its group waits for the others to finish their messages.
	kafkaTimeout = 2 * time.Second
	// kafkaBackoff is the pause before that repeat: about what the election of a new leader takes.
	kafkaBackoff = 250 * time.Millisecond
)

// Kafka carries messages in one topic, whose partition follows from the key. The topic is the operator's to make, with as many
// partitions as a consumer has instances, or the brokers' own to make at the first message. Nothing is asked of the brokers
// before the first use.
//
// A subscription reconnects by itself until it is closed.
func Kafka(brokers []string, log *slog.Logger) (*Broker, error) {
	logger, marshaler := newLogger(log), kafka.NewWithPartitioningMarshaler(func(_ string, w *message.Message) (string, error) {
		return w.Metadata.Get(metaKey), nil
	})
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: brokers, Marshaler: marshaler, OverwriteSaramaConfig: producerConfig(),
	}, logger)
	if err != nil {
		return nil, fmt.Errorf("broker: kafka publisher: %w", err)
	}
	return &Broker{
		Topics: []string{kafkaTopic}, Topic: func(int) string { return kafkaTopic }, Publisher: publisher, Close: publisher.Close,
		Subscriber: func(consumer string) (message.Subscriber, error) {
			return kafka.NewSubscriber(kafka.SubscriberConfig{
				Brokers: brokers, Unmarshaler: marshaler, ConsumerGroup: consumer, OverwriteSaramaConfig: consumerConfig(),
				NackResendSleep: resendAfter,
			}, logger)
		},
	}, nil
}

func producerConfig() *sarama.Config {
	c := commonConfig()
	c.Net.DialTimeout, c.Net.ReadTimeout, c.Net.WriteTimeout, c.Producer.Timeout = kafkaTimeout, kafkaTimeout, kafkaTimeout, kafkaTimeout
	c.Producer.RequiredAcks = sarama.WaitForAll // a message that a leader alone has is lost with it
	c.Producer.Retry.Max, c.Producer.Retry.Backoff = 1, kafkaBackoff
	c.Producer.Return.Successes = true // Publish waits for them
	return c
}

func consumerConfig() *sarama.Config {
	c := commonConfig()
	c.Consumer.Offsets.Initial = sarama.OffsetOldest // a new consumer must not miss what was published before it joined
	c.Consumer.Return.Errors = true                  // Watermill logs them
	return c
}

func commonConfig() *sarama.Config {
	c := sarama.NewConfig()
	c.ClientID = "oncepay"
	c.Metadata.Full = false // no metadata before it is needed: the service starts without its broker
	c.Metadata.Retry.Max, c.Metadata.Retry.Backoff = 1, kafkaBackoff
	return c
}
