package payment

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

func now() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// The names are the contract's, the numbers are the database's.
func TestStatusNames(t *testing.T) {
	for i, name := range []string{"CREATED", "PENDING", "UNKNOWN", "SUCCEEDED", "FAILED", "CLOSED"} {
		s := Status(i)
		if got, err := json.Marshal(s); err != nil || string(got) != `"`+name+`"` {
			t.Errorf("%d: %s, %v; want %s", i, got, err, name)
		}
		if want := i <= 2; s.Open() != want {
			t.Errorf("%s open: %v, want %v", s, s.Open(), want)
		}
	}
	for i, name := range []string{"PROCESSING", "SUCCESS", "FAILED"} {
		got, err := json.Marshal(RefundStatus(i))
		if err != nil || string(got) != `"`+name+`"` {
			t.Errorf("%d: %s, %v; want %s", i, got, err, name)
		}
		var back RefundStatus
		if err := json.Unmarshal(got, &back); err != nil || back != RefundStatus(i) {
			t.Errorf("%s read back: %v, %v", name, back, err)
		}
	}
	var s RefundStatus
	for _, bad := range []string{`"success"`, `"DONE"`, `""`, `1`} {
		if err := json.Unmarshal([]byte(bad), &s); err == nil {
			t.Errorf("%s was read as %s", bad, s)
		}
	}
	for i, name := range []string{"parked", "applied", "repeated", "stale", "for_person"} {
		if got := Disposal(i).String(); got != name {
			t.Errorf("disposal %d is %s, want %s", i, got, name)
		}
	}
	if got := Status(99).String() + RefundStatus(99).String() + Disposal(99).String(); got != "status(99)status(99)status(99)" {
		t.Errorf("what is no status shows as %s", got)
	}
}

// An attempt shows what is not known yet as null.
func TestPaymentAsClientsSeeIt(t *testing.T) {
	p := Payment{PayNo: "p", OrderNo: orderNo, UserID: 1001, Channel: "mockpay", Amount: 1999, Currency: "CNY", Status: Unknown, CreatedAt: now()}
	a, err := paymentAnswer(p)
	const want = `{"pay_no":"p","order_no":"` + orderNo + `","channel":"mockpay","amount":1999,"currency":"CNY","status":"UNKNOWN",` +
		`"trade_no":null,"pay_url":null,"refunded_amount":0,"created_at":"2026-05-01T12:00:00Z"}` + "\n"
	if err != nil || string(a.Body) != want || a.Status != 202 || a.Location != "/v1/payments/p" {
		t.Errorf("%d %s %s, %v; want 202 and %s", a.Status, a.Location, a.Body, err, want)
	}
	for s, status := range map[Status]int{Created: 202, Unknown: 202, Pending: 201, Succeeded: 201, Failed: 201, Closed: 201} {
		p.Status = s
		if a, err := paymentAnswer(p); err != nil || a.Status != status {
			t.Errorf("%s is answered %d, %v; want %d", s, a.Status, err, status)
		}
	}
}

// An unknown outcome is asked about often at first and for hours in the end, a pending one as long as it takes.
func TestWhenToLookAgain(t *testing.T) {
	for _, c := range []struct {
		status Status
		looks  int
		want   time.Duration // 0: never again
	}{
		{Unknown, 0, time.Second}, {Unknown, 1, 2 * time.Second}, {Unknown, 2, 5 * time.Second}, {Unknown, 5, 10 * time.Second},
		{Unknown, 6, 30 * time.Second}, {Unknown, 7, time.Minute}, {Unknown, 8, 5 * time.Minute}, {Unknown, 9, 30 * time.Minute},
		{Unknown, 10, 2 * time.Hour}, {Unknown, 11, 0}, {Unknown, 1 << 20, 0},
		{Created, 0, time.Second}, {Created, 11, 0},
		{Pending, 0, 30 * time.Second}, {Pending, 1, time.Minute}, {Pending, 2, 2 * time.Minute}, {Pending, 3, 4 * time.Minute},
		{Pending, 4, 5 * time.Minute}, {Pending, 11, 5 * time.Minute}, {Pending, 1 << 20, 5 * time.Minute},
	} {
		at := nextLook(c.status, c.looks, now())
		switch {
		case at == nil && c.want != 0, at != nil && !at.Equal(now().Add(c.want)):
			t.Errorf("%s after %d looks: %v; want after %v", c.status, c.looks, at, c.want)
		case at != nil && c.want == 0:
			t.Errorf("%s after %d looks: %v; want no more", c.status, c.looks, at)
		}
	}
	for _, c := range []struct {
		looks int
		want  time.Duration
	}{{0, time.Second}, {10, 2 * time.Hour}, {11, 2 * time.Hour}, {94, 2 * time.Hour}, {95, 0}} {
		if at := nextRefundLook(c.looks, now()); (at == nil) != (c.want == 0) || at != nil && !at.Equal(now().Add(c.want)) {
			t.Errorf("a refund after %d looks: %v; want after %v", c.looks, at, c.want)
		}
	}
	total := time.Duration(0)
	for _, pause := range unknownLooks() {
		total += pause
	}
	if total < time.Hour {
		t.Errorf("a person is asked after %v, before most outages are over", total)
	}
}

// A query's word is the same fact as a notice's: that of the trade, in the terms of Apply.
func TestTradeFact(t *testing.T) {
	ch := fake{name: "mockpay", merchant: "m"}
	at := time.Date(2026, 5, 1, 20, 0, 0, 999, time.FixedZone("", 8*3600))
	trade := Trade{TradeNo: tradeNo, Amount: 1999, Currency: "CNY", At: at}
	for status, event := range map[TradeStatus]Event{TradeSucceeded: EventPaid, TradeFailed: EventPayFailed, TradeClosed: EventPayClosed} {
		trade.Status = status
		want := Fact{
			Event: event, Channel: "mockpay", Merchant: "m", PayNo: "p", TradeNo: tradeNo, Amount: 1999, Currency: "CNY", OccurredAt: now(), Source: "query",
		}
		if got := tradeFact(ch, Payment{PayNo: "p", Amount: 1}, trade, "query"); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
