package broker

import (
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

// startKafka starts an in-process Kafka of three brokers.
func startKafka(t *testing.T) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(4, kafkaTopic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

func openKafka(t *testing.T, brokers ...string) *Broker {
	t.Helper()
	b, err := Kafka(brokers, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func onKafka(t *testing.T) *server {
	t.Helper()
	cluster := startKafka(t)
	return &server{
		Broker: openKafka(t, cluster.ListenAddrs()...),
		poison: func(int) {
			config := producerConfig()
			config.Producer.Partitioner = sarama.NewManualPartitioner
			producer, err := sarama.NewSyncProducer(cluster.ListenAddrs(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer producer.Close()
			for partition := range int32(4) {
				_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: kafkaTopic, Partition: partition, Value: sarama.StringEncoder("not ours")})
				if err != nil {
					t.Fatal(err)
				}
			}
		},
		settled: func(consumer string, n int) {
			if _, err := cluster.WaitGroupStable(t.Context(), consumer, n); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// The service starts without its broker, and a relay learns before its lease ends that it cannot send.
func TestAKafkaThatIsDownFailsThePublishAndNothingElse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	b := openKafka(t, listener.Addr().String())
	start := time.Now()
	wantError(t, b)
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("it took %s", took)
	}
}

// B110, B111: the broker is down and comes back, and nobody has to subscribe again.
func TestASubscriptionOutlivesAKafkaThatIsAway(t *testing.T) {
	cluster := startKafka(t)
	b := openKafka(t, cluster.ListenAddrs()...)
	r := join(t, b, "coupons")
	publish(t, b, stored("a", 1))
	r.want(stored("a", 1))
	down := make(chan struct{})
	cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		select {
		case <-down:
			return nil, nil, false
		default:
			return nil, errors.New("down"), true // cuts the connection
		}
	})
	wantError(t, b)
	close(down)
	m := stored("a", 2)
	testenv.Eventually(t, patience, "publish works", func() error { return b.Publish(outbox.Shard(m.Key), []outbox.Stored{m}) })
	r.want(m)
}
