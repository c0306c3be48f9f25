package main

import (
	"context"
	"net/http"
	"time"

	"example.com/oncepay/internal/broker"
	"example.com/oncepay/internal/dedup"
	"example.com/oncepay/internal/grant"
	"example.com/oncepay/internal/notify"
	"example.com/oncepay/internal/outbox"
)

// consumerLease is how long one try at a message may hold it: twice what a try may take, so that no try is taken over while it
// still works.
const consumerLease = 30 * time.Second

// consumers is who hears of what.
func (s *service) consumers() []dedup.Consumer {
	list := []dedup.Consumer{{
		Name: "points", Topics: []string{"order.paid", "refund.succeeded", "refund.undone"}, Handle: grant.Points{Now: s.now}.Handle,
	}}
	if s.cfg.NotifyURL != "" {
		endpoint := &notify.Client{URL: s.cfg.NotifyURL, Secret: s.cfg.NotifySecret, HTTP: &http.Client{}, Now: s.now}
		list = append(list, dedup.Consumer{Name: "notify", Topics: []string{"order.paid"}, Call: endpoint.Call})
	}
	return list
}

// bloomSize is how many messages each generation of the optional filter holds: a day of a busy shop, in about a megabyte.
const bloomSize = 500_000

// openMessages connects the outbox with its consumers: relay, broker, dedup table.
func (s *service) openMessages() (err error) {
	if len(s.cfg.KafkaBrokers) > 0 {
		s.broker, err = broker.Kafka(s.cfg.KafkaBrokers, s.log)
	} else {
		s.broker = broker.Redis(s.stores.streams, s.log)
	}
	if err != nil {
		return err
	}
	s.relay = &outbox.Relay{DB: s.stores.db, Publish: s.broker.Publish, Now: s.now, Log: s.log, Oldest: s.metrics.OutboxAge}
	s.messages = &dedup.Service{
		DB: s.stores.db, Now: s.now, Metrics: s.metrics, Log: s.log, Exceptions: s.exceptions, Consumers: s.consumers(), Lease: consumerLease,
	}
	if s.cfg.DedupBloom {
		s.messages.Filter = dedup.NewFilter(bloomSize)
	}
	return nil
}

// work does everything that no request waits for, until ctx ends.
func (s *service) work(ctx context.Context) {
	consuming := make(chan struct{})
	go func() {
		defer close(consuming)
		s.messages.Run(ctx, s.broker)
	}()
	s.jobs.Run(ctx)
	<-consuming
}
