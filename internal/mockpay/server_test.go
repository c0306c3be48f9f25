package mockpay

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestATradeIsPaidOnce(t *testing.T) {
	c := start(t)
	opened := want[Trade](c, 200, "POST", "/v1/trades", tradeBody("p-1", ""))
	if opened.Status != TradePending || opened.TradeNo == "" || opened.PaidAt != nil || opened.PayURL != c.url+"/pay/p-1" {
		t.Errorf("%+v", opened)
	}
	paid := want[Trade](c, 200, "POST", "/v1/trades/p-1/pay", "")
	if paid.Status != TradeSucceeded || paid.PaidAt == nil || !paid.PaidAt.Equal(noon()) || paid.TradeNo != opened.TradeNo {
		t.Errorf("%+v", paid)
	}
	again := want[Trade](c, 200, "POST", "/v1/trades/p-1/pay", "")
	asked := want[Trade](c, 200, "GET", "/v1/trades/p-1", "")
	charged := want[Trade](c, 200, "POST", "/v1/trades", tradeBody("p-1", ""))
	for _, got := range []Trade{again, asked, charged} {
		if got.Status != TradeSucceeded || got.TradeNo != opened.TradeNo || !got.PaidAt.Equal(*paid.PaidAt) {
			t.Errorf("%+v", got)
		}
	}
	c.wantKinds("charge pay")
	for _, e := range c.effects().Data {
		if e.MerchantID != merchant || e.OutTradeNo != "p-1" || e.TradeNo != opened.TradeNo || e.Amount != 100 || e.Currency != "CNY" || !e.At.Equal(noon()) {
			t.Errorf("%+v", e)
		}
	}
}

func TestADifferentRequestUnderTheSameNumberIsRefused(t *testing.T) {
	c := start(t)
	c.paid("p-1", "")
	for _, body := range []string{
		`{"merchant_id":"m-mockpay","out_trade_no":"p-1","amount":101,"currency":"CNY"}`,
		`{"merchant_id":"m-mockpay","out_trade_no":"p-1","amount":100,"currency":"JPY"}`,
		`{"merchant_id":"m-mockpay2","out_trade_no":"p-1","amount":100,"currency":"CNY"}`,
	} {
		c.refused(409, "trade_differs", "POST", "/v1/trades", body)
	}
	c.paid("p-2", "")
	want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "10", ""))
	c.refused(409, "refund_differs", "POST", "/v1/refunds", refundBody("r-1", "p-1", "11", ""))
	c.refused(409, "refund_differs", "POST", "/v1/refunds", refundBody("r-1", "p-2", "10", ""))
	c.wantKinds("charge pay charge pay refund")
}

// A final trade does not become another: the loser learns what stands in the way.
func TestADecidedTradeStaysAsItIs(t *testing.T) {
	for _, test := range []struct {
		first, second string
		status        int
		code, after   string
	}{
		{"pay", "pay", 200, "", TradeSucceeded},
		{"pay", "fail", 409, "trade_paid", TradeSucceeded},
		{"pay", "close", 409, "trade_paid", TradeSucceeded},
		{"fail", "pay", 409, "trade_failed", TradeFailed},
		{"fail", "fail", 200, "", TradeFailed},
		{"fail", "close", 200, "", TradeFailed}, // no money can come any more: that is what closing asks for
		{"close", "pay", 409, "trade_closed", TradeClosed},
		{"close", "fail", 409, "trade_closed", TradeClosed},
		{"close", "close", 200, "", TradeClosed},
	} {
		t.Run(test.first+" "+test.second, func(t *testing.T) {
			c := start(t)
			want[Trade](c, 200, "POST", "/v1/trades", tradeBody("p-1", ""))
			want[Trade](c, 200, "POST", "/v1/trades/p-1/"+test.first, "")
			if test.code != "" {
				p := c.refused(test.status, test.code, "POST", "/v1/trades/p-1/"+test.second, "")
				if p.Trade == nil || p.Trade.Status != test.after {
					t.Errorf("the refusal shows %+v", p.Trade)
				}
			} else if got := want[Trade](c, test.status, "POST", "/v1/trades/p-1/"+test.second, "{}"); got.Status != test.after {
				t.Errorf("%+v", got)
			}
			if got := want[Trade](c, 200, "GET", "/v1/trades/p-1", ""); got.Status != test.after {
				t.Errorf("afterwards %+v", got)
			}
			c.wantKinds("charge " + test.first)
		})
	}
}

func TestRefundsNeverExceedWhatWasPaid(t *testing.T) {
	c := start(t)
	paid := c.paid("p-1", "")
	f := want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "60", ""))
	if f.Status != RefundProcessing || f.RefundID == "" || f.TradeNo != paid.TradeNo || f.Currency != "CNY" || f.Amount != 60 {
		t.Errorf("%+v", f)
	}
	if p := c.refused(409, "refund_exceeds_paid", "POST", "/v1/refunds", refundBody("r-2", "p-1", "41", "")); p.Trade == nil || p.Trade.OutTradeNo != "p-1" {
		t.Errorf("the refusal shows %+v", p.Trade)
	}
	c.refused(409, "refund_exceeds_paid", "POST", "/v1/refunds", refundBody("r-2", "p-1", "9223372036854775807", ""))
	want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-2", "p-1", "40", ""))
	c.refused(409, "refund_exceeds_paid", "POST", "/v1/refunds", refundBody("r-3", "p-1", "1", ""))
	want[Refund](c, 200, "POST", "/v1/refunds/r-1/fail", "") // frees its 60
	want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-3", "p-1", "60", ""))
	c.refused(409, "refund_exceeds_paid", "POST", "/v1/refunds", refundBody("r-4", "p-1", "1", ""))
	if again := want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "60", "")); again.Status != RefundFailed || again.RefundID != f.RefundID {
		t.Errorf("%+v; want the first refund, still failed", again)
	}
	c.wantKinds("charge pay refund refund refund_failed refund")
}

func TestARefundIsDecidedOnceAndMayFailAfterSuccess(t *testing.T) {
	c := start(t)
	c.paid("p-1", "")
	want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "30", ""))
	for _, step := range []struct{ action, status string }{{"succeed", RefundSuccess}, {"succeed", RefundSuccess}, {"fail", RefundFailed}, {"fail", RefundFailed}} {
		if f := want[Refund](c, 200, "POST", "/v1/refunds/r-1/"+step.action, ""); f.Status != step.status {
			t.Errorf("after %s: %+v", step.action, f)
		}
	}
	if p := c.refused(409, "refund_failed", "POST", "/v1/refunds/r-1/succeed", ""); p.Refund == nil || p.Refund.Status != RefundFailed {
		t.Errorf("the refusal shows %+v", p.Refund)
	}
	if f := want[Refund](c, 200, "GET", "/v1/refunds/r-1", ""); f.Status != RefundFailed {
		t.Errorf("%+v", f)
	}
	c.wantKinds("charge pay refund refund_succeeded refund_failed")
}

func TestARefundNeedsItsOwnPaidTrade(t *testing.T) {
	c := start(t)
	paid := c.paid("p-1", "")
	other := c.paid("p-2", "")
	want[Trade](c, 200, "POST", "/v1/trades", tradeBody("p-3", ""))
	c.refused(404, "trade_not_found", "POST", "/v1/refunds", refundBody("r-1", "p-9", "10", ""))
	c.refused(409, "trade_not_paid", "POST", "/v1/refunds", refundBody("r-1", "p-3", "10", ""))
	c.refused(404, "merchant_unknown", "POST", "/v1/refunds", strings.Replace(refundBody("r-1", "p-1", "10", ""), merchant, "m-mockpay2", 1))
	with := func(tradeNo string) string {
		return strings.Replace(refundBody("r-1", "p-1", "10", ""), `"amount"`, `"trade_no":"`+tradeNo+`","amount"`, 1)
	}
	c.refused(409, "trade_mismatch", "POST", "/v1/refunds", with(other.TradeNo))
	want[Refund](c, 200, "POST", "/v1/refunds", with(paid.TradeNo))
	c.refused(409, "trade_mismatch", "POST", "/v1/refunds", with(other.TradeNo))
	c.wantKinds("charge pay charge pay charge refund")
}

func TestMalformedCallsChangeNothing(t *testing.T) {
	c := start(t)
	trade := tradeBody("p-1", "")
	for _, change := range [][2]string{
		{`"amount":100`, `"amount":0`}, {`"amount":100`, `"amount":-1`}, {"CNY", "cny"}, {"p-1", ""}, {"p-1", ".."}, {"p-1", "a/b"}, {"p-1", "é"},
		{"p-1", strings.Repeat("x", maxNumber+1)}, {`"notify_url":""`, `"notify_url":"/relative"`}, {`"notify_url":""`, `"notify_url":"ftp://shop/x"`},
	} {
		c.refused(400, "field_invalid", "POST", "/v1/trades", strings.Replace(trade, change[0], change[1], 1))
	}
	for _, change := range [][2]string{
		{`"amount":100`, `"amount":"100"`}, {`"amount":100`, `"amount":100.0`}, {`"amount":100`, `"amount":100,"amount":1`}, {`"amount"`, `"Amount"`}, {"{", `{"x":1,`},
	} {
		c.refused(400, "body_invalid", "POST", "/v1/trades", strings.Replace(trade, change[0], change[1], 1))
	}
	c.refused(404, "merchant_unknown", "POST", "/v1/trades", strings.Replace(trade, merchant, "m-other", 1))
	for _, change := range [][2]string{{`:10,`, `:0,`}, {"r-1", "r 1"}, {"p-1", "-p"}, {`"notify_url":""`, `"notify_url":"x"`}} {
		c.refused(400, "field_invalid", "POST", "/v1/refunds", strings.Replace(refundBody("r-1", "p-1", "10", ""), change[0], change[1], 1))
	}
	c.wantKinds("")
	c.paid("p-1", "")
	c.refused(400, "field_invalid", "POST", "/v1/trades/p-1/pay?notify=on", "")
	c.refused(400, "body_invalid", "POST", "/v1/trades/p-1/pay", `{"amount":1}`)
	c.refused(404, "trade_not_found", "POST", "/v1/trades/P-1/pay", "") // numbers that differ in case are two
	c.refused(404, "trade_not_found", "GET", "/v1/trades/p-2", "")
	c.refused(404, "refund_not_found", "GET", "/v1/refunds/r-1", "")
	c.refused(404, "refund_not_found", "POST", "/v1/refunds/r-1/succeed", "")
	c.refused(404, "route_not_found", "GET", "/v2", "")
	c.refused(405, "method_not_allowed", "DELETE", "/v1/trades/p-1", "")
	c.wantKinds("charge pay")
}

// A number may hold the characters of built keys, however a client escapes them in the path.
func TestANumberIsFoundHoweverItIsEscaped(t *testing.T) {
	c := start(t)
	want[Trade](c, 200, "POST", "/v1/trades", tradeBody("r1:a~2f.b_c-d", ""))
	for _, path := range []string{"r1:a~2f.b_c-d", "r1%3Aa%7E2f.b_c-d"} {
		if got := want[Trade](c, 200, "GET", "/v1/trades/"+path, ""); got.OutTradeNo != "r1:a~2f.b_c-d" {
			t.Errorf("%+v", got)
		}
	}
}

// parallel makes the same call n times at once and returns how many ended with each status.
func (c *channel) parallel(n int, method, path string, body func(i int) string) map[int]int {
	c.t.Helper()
	var wg sync.WaitGroup
	gate := make(chan struct{})
	statuses := make(chan int, n)
	for i := range n {
		wg.Go(func() {
			<-gate
			status, answer, err := c.try(c.t.Context(), method, path, body(i))
			if err != nil {
				c.t.Errorf("%s %s: %v %s", method, path, err, answer)
			}
			statuses <- status
		})
	}
	close(gate)
	wg.Wait()
	close(statuses)
	count := make(map[int]int)
	for status := range statuses {
		count[status]++
	}
	return count
}

func TestFiftyEqualCallsHaveOneEffectEach(t *testing.T) {
	c := start(t)
	for _, call := range []struct{ path, body string }{
		{"/v1/trades", tradeBody("p-1", "")}, {"/v1/trades/p-1/pay", ""}, {"/v1/refunds", refundBody("r-1", "p-1", "100", "")},
		{"/v1/refunds/r-1/succeed", ""}, {"/v1/refunds/r-1/fail", ""},
	} {
		if count := c.parallel(50, "POST", call.path, func(int) string { return call.body }); count[200] != 50 {
			t.Errorf("%s: %v", call.path, count)
		}
	}
	c.wantKinds("charge pay refund refund_succeeded refund_failed")
	list := c.effects()
	if len(list.Arrivals) != 5 {
		t.Fatalf("%+v", list.Arrivals)
	}
	for _, a := range list.Arrivals {
		if a.Arrived != 50 || a.TookEffect != 1 || a.Number != "p-1" && a.Number != "r-1" {
			t.Errorf("%+v; want 50 arrivals and one effect", a)
		}
	}
}

func TestParallelRefundsKeepTheCap(t *testing.T) {
	c := start(t)
	c.paid("p-1", "")
	count := c.parallel(50, "POST", "/v1/refunds", func(i int) string { return refundBody(fmt.Sprintf("r-%d", i), "p-1", "30", "") })
	if count[200] != 3 || count[409] != 47 {
		t.Errorf("%v; want three refunds of 30 on 100", count)
	}
}

func TestRefundsSucceedByThemselvesIfAsked(t *testing.T) {
	hook, parcels := merchantServer(t, acknowledge)
	c := start(t, func(cfg *Config) { cfg.AutoRefund = true })
	c.paid("p-1", "")
	if f := want[Faults](c, 200, "GET", "/v1/faults", ""); f.RefundMode != RefundAuto || f.AutoRefundMS != autoRefundMS {
		t.Errorf("%+v", f)
	}
	want[Faults](c, 200, "PUT", "/v1/faults", `{"auto_refund_ms":0}`)
	want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "30", hook))
	if n := within(t, parcels, "no notice"); n.Event != EventRefundSucceeded || n.OutRefundNo != "r-1" {
		t.Errorf("%+v", n.Notice)
	}
	want[Faults](c, 200, "PUT", "/v1/faults", `{"refund_mode":"manual"}`)
	want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-2", "p-1", "30", hook))
	want[Faults](c, 200, "PUT", "/v1/faults", `{"refund_mode":"auto","auto_refund_ms":20}`)
	want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-3", "p-1", "30", hook))
	want[Refund](c, 200, "POST", "/v1/refunds/r-3/fail", "") // somebody decides before
	c.idle()
	for no, status := range map[string]string{"r-1": RefundSuccess, "r-2": RefundProcessing, "r-3": RefundFailed} {
		if f := want[Refund](c, 200, "GET", "/v1/refunds/"+no, ""); f.Status != status {
			t.Errorf("%s: %+v, want %s", no, f, status)
		}
	}
}

func TestAChannelNeedsMerchantsWithSecrets(t *testing.T) {
	for name, merchants := range map[string]map[string][]string{"none": nil, "no secret": {merchant: {}}, "empty secret": {merchant: {"a", ""}}} {
		if _, err := New(Config{Merchants: merchants}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTheContractsScheduleIsTheDefault(t *testing.T) {
	want := []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}
	if got := (Config{}).withDefaults().RetrySchedule; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v", got)
	}
	// A notice is not carried to where a redirect points.
	if err := (Config{}).withDefaults().Client.CheckRedirect(nil, nil); err != http.ErrUseLastResponse {
		t.Errorf("%v", err)
	}
}
