package main

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"path/filepath"

	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/mockpay"
	"example.com/oncepay/internal/payment"
	adapter "example.com/oncepay/internal/payment/mockpay"
)

// The fake channel's merchants (contract section 5): two channels, so that one order can be paid twice.
const (
	mockpayMerchant  = "m-mockpay"
	mockpay2Merchant = "m-mockpay2"
)

// channels are the payment channels, each behind its breaker. With MOCKPAY_URL empty in dev this process serves the fake
// channel itself and calls it over HTTP like any other. Production has no fake channel.
func (s *service) channels(self string) (payment.Channels, error) {
	base := s.cfg.MockpayURL
	secrets := map[string][]string{mockpayMerchant: config.List(s.cfg.MockpaySecret), mockpay2Merchant: config.List(s.cfg.Mockpay2Secret)}
	if base == "" {
		if s.cfg.Production() {
			return payment.Channels{}, nil
		}
		base = self + mockpayPath
		if !s.cfg.EmbeddedMySQL() {
			s.log.Warn("the fake channel runs inside this process and knows only its own trades; several instances on one database need one cmd/mockpay and MOCKPAY_URL")
		}
		var err error
		if s.mockpay, err = mockpay.New(mockpay.Config{
			Merchants: secrets, PublicURL: cmp.Or(s.cfg.PublicURL, self) + mockpayPath, Journal: s.mockpayJournal(), Now: s.now, Log: s.log,
		}); err != nil {
			return nil, err
		}
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("a channel does not redirect") }}
	channels := make(payment.Channels)
	for name, merchant := range map[string]string{"mockpay": mockpayMerchant, "mockpay2": mockpay2Merchant} {
		channels[name] = payment.NewBreaker(&adapter.Channel{
			ChannelName: name, MerchantID: merchant, BaseURL: base, Secrets: secrets[merchant], Tolerance: s.cfg.SignatureTolerance, Client: client,
		}, s.metrics, s.log)
	}
	return channels, nil
}

const mockpayPath = "/mockpay"

// mockpayJournal keeps the fake channel's memory beside the embedded database it belongs to; with another database it starts
// empty, as a fake may.
func (s *service) mockpayJournal() string {
	if !s.cfg.EmbeddedMySQL() {
		return ""
	}
	return filepath.Join(s.cfg.DataDir, "mockpay.jsonl")
}

// closeMockpay ends the in-process channel's deliveries.
func (s *service) closeMockpay(ctx context.Context) error {
	if s.mockpay == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return s.mockpay.Close(ctx)
}
