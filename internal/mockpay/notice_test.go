package mockpay

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Golden values, made with Python's hmac: a receiver in any language computes the same.
func TestTheSignatureIsPinned(t *testing.T) {
	at, body := time.Unix(1777636800, 999), []byte(`{"notify_id":"n-1"}`)
	const dev = "9b0a4498efbe25163c661515c325869e02d01dd9ca1801cd85cff40077dc6abe"
	const rotated = "2da1e3e9c7fd29c561ef0adf6462d0fb3609519dc535caa4911898420d4885c7"
	if got := Sign("whsec_dev", at, body); got != dev {
		t.Errorf("Sign: %s", got)
	}
	if got, want := SignatureHeader([]string{"whsec_new", "whsec_dev"}, at, body), "t=1777636800,v1="+rotated+",v1="+dev; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestEveryDecisionSendsItsNotice(t *testing.T) {
	hook, parcels := merchantServer(t, acknowledge)
	c := start(t)
	for _, no := range []string{"p-1", "p-2", "p-3"} {
		want[Trade](c, 200, "POST", "/v1/trades", tradeBody(no, hook))
	}
	ids := make(map[string]bool)
	expect := func(path, event, outTradeNo, outRefundNo string) {
		t.Helper()
		want[any](c, 200, "POST", path, "")
		n := within(t, parcels, "no notice after "+path)
		if n.Event != event || n.OutTradeNo != outTradeNo || n.OutRefundNo != outRefundNo || n.MerchantID != merchant || n.Currency != "CNY" ||
			n.TradeNo == "" || !n.OccurredAt.Equal(noon()) || n.NotifyID == "" || len(n.NotifyID) > 64 || ids[n.NotifyID] {
			t.Errorf("%+v", n.Notice)
		}
		if amount := n.Amount; amount != 100 && outRefundNo == "" || amount != 30 && outRefundNo != "" {
			t.Errorf("%+v", n.Notice)
		}
		if n.signature != SignatureHeader([]string{"whsec_dev"}, noon(), n.body) {
			t.Errorf("signature %s", n.signature)
		}
		if strings.Contains(string(n.body), "out_refund_no") != (outRefundNo != "") {
			t.Errorf("%s", n.body)
		}
		ids[n.NotifyID] = true
	}
	expect("/v1/trades/p-1/pay", EventPaymentSucceeded, "p-1", "")
	expect("/v1/trades/p-2/fail", EventPaymentFailed, "p-2", "")
	expect("/v1/trades/p-3/close", EventPaymentClosed, "p-3", "")
	want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "30", hook))
	expect("/v1/refunds/r-1/succeed", EventRefundSucceeded, "p-1", "r-1")
	expect("/v1/refunds/r-1/fail", EventRefundFailed, "p-1", "r-1")
}

// A decision asked for again changes nothing, and its notice comes again under its id; ?notify=off sends none.
func TestARepeatedDecisionSendsTheSameNotice(t *testing.T) {
	hook, parcels := merchantServer(t, acknowledge)
	c := start(t)
	c.paid("p-1", hook)
	first := within(t, parcels, "no notice")
	want[Trade](c, 200, "POST", "/v1/trades/p-1/pay?notify=off", "")
	want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "30", hook))
	want[Refund](c, 200, "POST", "/v1/refunds/r-1/succeed?notify=off", "")
	want[Trade](c, 200, "POST", "/v1/trades/p-1/pay", "")
	c.idle()
	second := within(t, parcels, "no notice")
	if !bytes.Equal(first.body, second.body) || len(parcels) != 0 {
		t.Errorf("%s\n%s\nand %d more", first.body, second.body, len(parcels))
	}
	c.wantKinds("charge pay refund refund_succeeded")
}

// Only 200 and exactly "success" is an acknowledgement; each delivery is signed anew, with the time it leaves.
func TestANoticeIsSentUntilItIsAcknowledged(t *testing.T) {
	clock := make(chan time.Time, 100)
	for i := range cap(clock) {
		clock <- noon().Add(time.Duration(i) * time.Second)
	}
	answers := []struct {
		status int
		body   string
	}{{500, "success"}, {204, ""}, {200, "success\n"}, {200, "SUCCESS"}, {200, ""}, {201, "success"}, {302, "success"}, {200, `"success"`}, {200, "success"}}
	hook, parcels := merchantServer(t, func(n int) (int, string) {
		if n > len(answers) {
			return 200, "success"
		}
		return answers[n-1].status, answers[n-1].body
	})
	c := start(t, func(cfg *Config) {
		cfg.RetrySchedule = make([]time.Duration, 20)
		cfg.Now = func() time.Time { return <-clock }
	})
	c.paid("p-1", hook)
	c.idle()
	if len(parcels) != len(answers) {
		t.Fatalf("%d deliveries, want %d", len(parcels), len(answers))
	}
	signatures := make(map[string]bool)
	first := within(t, parcels, "")
	signatures[first.signature] = true
	for len(parcels) > 0 {
		p := within(t, parcels, "")
		if !bytes.Equal(p.body, first.body) {
			t.Errorf("%s\n%s", p.body, first.body)
		}
		signatures[p.signature] = true
	}
	if len(signatures) != len(answers) {
		t.Errorf("%d signatures for %d deliveries", len(signatures), len(answers))
	}
}

func TestANoticeIsGivenUpWhenTheScheduleEnds(t *testing.T) {
	hook, parcels := merchantServer(t, func(int) (int, string) { return 503, "" })
	c := start(t)
	c.paid("p-1", hook)
	c.idle()
	if len(parcels) != 4 {
		t.Errorf("%d deliveries; want one and three retries", len(parcels))
	}
	c.close()
	if !strings.Contains(c.log.String(), "given up") {
		t.Error("nobody is told")
	}
}

func TestAnUnreachableMerchantIsTriedAgain(t *testing.T) {
	hook, parcels := merchantServer(t, acknowledge)
	broken := true
	c := start(t, func(cfg *Config) {
		cfg.Client = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if broken { // only the one delivery reads and writes it
				broken = false
				return nil, http.ErrHandlerTimeout
			}
			return http.DefaultTransport.RoundTrip(r)
		})}
	})
	c.paid("p-1", hook)
	within(t, parcels, "not tried again")
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestCloseStopsDeliveries(t *testing.T) {
	for name, schedule := range map[string][]time.Duration{"while it waits": {time.Hour}, "while it is sent": {time.Hour, time.Hour}} {
		t.Run(name, func(t *testing.T) {
			arrived, release := make(chan struct{}, 1), make(chan struct{})
			hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				arrived <- struct{}{}
				if name == "while it is sent" {
					<-release
				}
				w.WriteHeader(500)
			}))
			t.Cleanup(hook.Close)
			t.Cleanup(func() { close(release) })
			c := start(t, func(cfg *Config) { cfg.RetrySchedule = schedule })
			c.paid("p-1", hook.URL)
			within(t, arrived, "not delivered")
			c.close() // fails the test if it does not end in time
			want[Trade](c, 200, "POST", "/v1/trades/p-1/pay", "")
			c.idle()
			if len(arrived) != 0 {
				t.Error("a notice was sent after Close")
			}
		})
	}
}

func TestNoticesCanBeRepeated(t *testing.T) {
	hook, parcels := merchantServer(t, acknowledge)
	c := start(t)
	want[Faults](c, 200, "PUT", "/v1/faults", `{"notices":{"repeat":4,"times":1}}`)
	c.paid("p-1", hook)
	c.idle()
	c.paid("p-2", hook)
	c.idle()
	if len(parcels) != 5+1 {
		t.Fatalf("%d deliveries; want 5 of the first notice and 1 of the second", len(parcels))
	}
	first := within(t, parcels, "")
	for range 4 {
		if p := within(t, parcels, ""); !bytes.Equal(p.body, first.body) {
			t.Errorf("%s\n%s", p.body, first.body)
		}
	}
}

func TestNoticesCanBeLostOrDelayed(t *testing.T) {
	for _, fault := range []string{`"lose":true`, `"delay_ms":600000`} {
		t.Run(fault, func(t *testing.T) {
			hook, parcels := merchantServer(t, acknowledge)
			c := start(t)
			want[Faults](c, 200, "PUT", "/v1/faults", `{"notices":{`+fault+`,"times":1}}`)
			c.paid("p-1", hook)
			c.paid("p-2", hook)
			if n := within(t, parcels, "no notice"); n.OutTradeNo != "p-2" {
				t.Errorf("%+v", n.Notice)
			}
			c.close()
			if len(parcels) != 0 {
				t.Error("the first notice came nevertheless")
			}
		})
	}
	hook, parcels := merchantServer(t, acknowledge)
	c := start(t)
	want[Faults](c, 200, "PUT", "/v1/faults", `{"notices":{"delay_ms":1}}`)
	c.paid("p-1", hook)
	within(t, parcels, "a delayed notice does not come")
}

func TestNoticesCanBeReordered(t *testing.T) {
	hook, parcels := merchantServer(t, func(n int) (int, string) {
		if n == 1 {
			return 500, "" // the first attempt decides the order, acknowledged or not
		}
		return 200, "success"
	})
	c := start(t, func(cfg *Config) { cfg.RetrySchedule = []time.Duration{time.Hour} })
	want[Faults](c, 200, "PUT", "/v1/faults", `{"notices":{"reorder":true,"times":1}}`)
	c.paid("p-1", hook)
	c.idle()
	if len(parcels) != 0 {
		t.Error("the first notice did not wait")
	}
	want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "30", hook))
	want[Refund](c, 200, "POST", "/v1/refunds/r-1/succeed", "")
	for _, event := range []string{EventRefundSucceeded, EventPaymentSucceeded} {
		if n := within(t, parcels, "no notice"); n.Event != event {
			t.Errorf("%s, want %s", n.Event, event)
		}
	}
}

func TestAHeldBackNoticeIsLetGoWhenReorderingEnds(t *testing.T) {
	hook, parcels := merchantServer(t, acknowledge)
	c := start(t)
	want[Faults](c, 200, "PUT", "/v1/faults", `{"notices":{"reorder":true}}`)
	c.paid("p-1", hook)
	want[Faults](c, 200, "DELETE", "/v1/faults", "")
	if n := within(t, parcels, "no notice"); n.OutTradeNo != "p-1" {
		t.Errorf("%+v", n.Notice)
	}
}

func TestARotatingSecretSignsTwice(t *testing.T) {
	hook, parcels := merchantServer(t, acknowledge)
	c := start(t)
	status, answer := c.send("PUT", "/v1/secrets", `{"merchant_id":"m-mockpay","secrets":["whsec_new","whsec_dev"]}`)
	if status != 200 || strings.Contains(string(answer), "whsec") {
		t.Errorf("%d %s", status, answer)
	}
	c.paid("p-1", hook)
	n := within(t, parcels, "no notice")
	if n.signature != SignatureHeader([]string{"whsec_new", "whsec_dev"}, noon(), n.body) || strings.Count(n.signature, "v1=") != 2 {
		t.Errorf("signature %s", n.signature)
	}
	c.refused(404, "merchant_unknown", "PUT", "/v1/secrets", `{"merchant_id":"m-other","secrets":["a"]}`)
	c.refused(400, "field_invalid", "PUT", "/v1/secrets", `{"merchant_id":"m-mockpay","secrets":[]}`)
	c.refused(400, "field_invalid", "PUT", "/v1/secrets", `{"merchant_id":"m-mockpay","secrets":["a",""]}`)
	c.close()
	if strings.Contains(c.log.String(), "whsec") {
		t.Error("a secret is in the log")
	}
}
