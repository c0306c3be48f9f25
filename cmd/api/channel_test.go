package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/jobs"
	"example.com/oncepay/internal/mockpay"
)

// channelServer is the fake channel of a stack, as a server of its own.
type channelServer struct {
	url string
	srv *mockpay.Server
}

func newChannelServer(t *testing.T) *channelServer {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	url := "http://" + server.Listener.Addr().String()
	srv, err := mockpay.New(mockpay.Config{
		Merchants: map[string][]string{mockpayMerchant: {config.DevMockpaySecret}, mockpay2Merchant: {config.DevMockpay2Secret}},
		PublicURL: url, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Config.Handler = srv
	server.Start()
	t.Cleanup(func() {
		if err := srv.Close(context.Background()); err != nil {
			t.Errorf("close mockpay: %v", err)
		}
		server.Close()
	})
	return &channelServer{url, srv}
}

// useChannel makes both instances talk to the fake channel at url from now on.
func (s *stack) useChannel(url string) {
	s.t.Helper()
	for _, i := range s.instances {
		cfg := *i.svc.cfg
		cfg.MockpayURL = url
		i.svc.cfg = &cfg
		channels, err := i.svc.channels(i.url)
		if err != nil {
			s.t.Fatal(err)
		}
		i.svc.payments.Channels = channels
	}
}

// at sends a request to the fake channel itself, e.g. at("POST", "/v1/trades/"+payNo+"/pay?notify=off", "").
func (s *stack) at(method, path, body string) reply {
	s.t.Helper()
	req, err := http.NewRequest(method, s.channel.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return exchange(req)
}

// faults sets the fake channel's faults.
func (s *stack) faults(body string) {
	s.t.Helper()
	if r := s.at(http.MethodPut, "/v1/faults", body); r.status != http.StatusOK {
		s.t.Fatalf("set faults: %v", r)
	}
}

// effects counts the fake channel's effects of a kind ("charge", "pay", "refund", "refund_succeeded", "close", ...) for one
// number (out_trade_no or out_refund_no), or all of them for "".
func (s *stack) effects(kind, number string) int {
	s.t.Helper()
	var log struct {
		Data []struct {
			Kind        string `json:"kind"`
			OutTradeNo  string `json:"out_trade_no"`
			OutRefundNo string `json:"out_refund_no"`
		} `json:"data"`
	}
	if err := json.Unmarshal(s.at(http.MethodGet, "/v1/effects", "").body, &log); err != nil {
		s.t.Fatal(err)
	}
	n := 0
	for _, e := range log.Data {
		if e.Kind == kind && (number == "" || e.OutTradeNo == number || e.OutRefundNo == number) {
			n++
		}
	}
	return n
}

// payCall describes a request to pay.
func payCall(on int, user int64, orderNo, channel, k string) call {
	return call{on: on, as: buyer(user), path: "/v1/orders/" + orderNo + "/payments", body: fmt.Sprintf(`{"channel":%q}`, channel), key: k}
}

// refundCall describes a request to refund.
func refundCall(on int, user int64, orderNo string, amount int64, k string) call {
	return call{on: on, as: buyer(user), path: "/v1/orders/" + orderNo + "/refunds", body: fmt.Sprintf(`{"amount":%d,"reason":"test"}`, amount), key: k}
}

// attempt opens a payment and returns its pay_no.
func (s *stack) attempt(user int64, orderNo, channel string) string {
	s.t.Helper()
	return s.must(http.StatusCreated, payCall(0, user, orderNo, channel, key("pay-%s-%s", orderNo, channel))).field("pay_no")
}

// paid makes an order of SKU 1 and pays it, through a notice signed by the test, and returns order_no and pay_no.
func (s *stack) paid(user int64) (orderNo, payNo string) {
	s.t.Helper()
	orderNo = s.order(user, 1)
	payNo = s.attempt(user, orderNo, "mockpay")
	if r := s.at(http.MethodPost, "/v1/trades/"+payNo+"/pay?notify=off", ""); r.status != http.StatusOK {
		s.t.Fatalf("pay: %v", r)
	}
	if r := s.notify(0, s.noticeOf("payment.succeeded", payNo)); r.status != http.StatusOK {
		s.t.Fatalf("notice: %v", r)
	}
	return orderNo, payNo
}

// tradeNo returns the channel's number of an attempt's trade.
func (s *stack) tradeNo(payNo string) string {
	s.t.Helper()
	return s.at(http.MethodGet, "/v1/trades/"+payNo, "").field("trade_no")
}

// noticeOf builds a payment's notice as the channel would, at the present.
func (s *stack) noticeOf(event, payNo string) mockpay.Notice {
	s.t.Helper()
	trade := s.at(http.MethodGet, "/v1/trades/"+payNo, "")
	var n mockpay.Notice
	if err := json.Unmarshal(trade.body, &n); err != nil { // merchant, numbers, amount and currency have the same names
		s.t.Fatal(err)
	}
	n.NotifyID, n.Event, n.OccurredAt = fmt.Sprintf("N%d", time.Now().UnixNano()), event, time.Now().UTC()
	return n
}

// refundNoticeOf builds a refund's notice as the channel would, at the present.
func (s *stack) refundNoticeOf(event, refundNo string) mockpay.Notice {
	s.t.Helper()
	var n mockpay.Notice
	if err := json.Unmarshal(s.at(http.MethodGet, "/v1/refunds/"+refundNo, "").body, &n); err != nil {
		s.t.Fatal(err)
	}
	n.NotifyID, n.Event, n.OccurredAt = fmt.Sprintf("N%d", time.Now().UnixNano()), event, time.Now().UTC()
	return n
}

// notify signs a notice with channel mockpay's secret and delivers it to an instance.
func (s *stack) notify(on int, n mockpay.Notice) reply {
	s.t.Helper()
	body, err := json.Marshal(n)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.deliver(on, "mockpay", config.DevMockpaySecret, s.instances[on%2].clock.now(), body)
}

// deliver signs bytes with a secret at a time and posts them as a channel's notice.
func (s *stack) deliver(on int, channel, secret string, at time.Time, body []byte) reply {
	return s.post(on, channel, mockpay.SignatureHeader([]string{secret}, at, body), body)
}

// post sends bytes as a notice under any signature header, or none.
func (s *stack) post(on int, channel, signature string, body []byte) reply {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.instances[on%2].url+"/v1/callbacks/"+channel, strings.NewReader(string(body)))
	if err != nil {
		s.t.Error(err)
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	if signature != "" {
		req.Header.Set("Mockpay-Signature", signature)
	}
	return exchange(req)
}

// round runs one round of a job on an instance.
func (s *stack) round(on int, name string) {
	s.t.Helper()
	i := s.instances[on%2]
	for _, job := range i.svc.jobs.Jobs {
		if job.Name == name {
			i.svc.jobs.Once(context.Background(), job)
			return
		}
	}
	s.t.Fatalf("no job %q in %v", name, jobNames(i.svc.jobs.Jobs))
}

func jobNames(list []jobs.Job) []string {
	names := make([]string, len(list))
	for i, j := range list {
		names[i] = j.Name
	}
	return names
}

// advance moves the clocks of both instances.
func (s *stack) advance(d time.Duration) {
	for _, i := range s.instances {
		i.clock.advance(d)
	}
}

// status returns an order's status as its owner sees it.
func (s *stack) status(user int64, orderNo string) string {
	s.t.Helper()
	return s.must(http.StatusOK, call{as: buyer(user), path: "/v1/orders/" + orderNo}).field("status")
}

// exceptions lists the kinds of the open exceptions.
func (s *stack) exceptions() []string {
	s.t.Helper()
	var list struct {
		Data []struct {
			Kind string `json:"kind"`
		} `json:"data"`
	}
	r := s.must(http.StatusOK, call{as: operator, path: "/v1/ops/exceptions?status=open&limit=100"})
	if err := json.Unmarshal(r.body, &list); err != nil {
		s.t.Fatal(err)
	}
	var kinds []string
	for _, e := range list.Data {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}
