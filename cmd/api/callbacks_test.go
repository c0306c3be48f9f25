package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/mockpay"
	"example.com/oncepay/internal/testenv"
)

// tolerance is SIGNATURE_TOLERANCE's default.
const tolerance = 300 * time.Second

// offered returns an unpaid order whose trade is paid at the channel, and the notice of it that has not arrived yet.
func (s *stack) offered(user int64) (orderNo string, n mockpay.Notice) {
	return success(nil)(s, user)
}

// wantNothingOf asserts that a refused delivery left nothing: no row, no move.
func (s *stack) wantNothingOf(t *testing.T, orderNo string, n mockpay.Notice) {
	t.Helper()
	s.wantFate(t, orderNo, unpaid())
	if got := s.notices(n.NotifyID); len(got) != 0 {
		t.Errorf("kept of refused deliveries: %v, want none", got)
	}
}

// B68: the time in the signature holds in both directions, to the second; a later delivery of what was refused succeeds.
func TestASignatureIsFreshInBothDirections(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	orderNo, n := s.offered(1001)
	now := s.instances[0].clock.now()
	body := s.marshal(n)
	for _, off := range []time.Duration{-tolerance - 2*time.Second, tolerance + 2*time.Second, time.Hour, -time.Hour, -now.Sub(time.Unix(0, 0))} {
		r := s.deliver(0, "mockpay", config.DevMockpaySecret, now.Add(off), body)
		wantProblem(t, r, http.StatusUnauthorized, "signature_stale")
	}
	for _, at := range []string{"-1", "1e18", "1000000000000000000", fmt.Sprint(now.UnixMilli()), "", "0x10", "+1", "01"} {
		// The signature itself is right for what it says.
		r := s.post(0, "mockpay", "t="+at+",v1="+mockpay.Sign(config.DevMockpaySecret, now, body), body)
		if r.status != http.StatusUnauthorized {
			t.Errorf("t=%q: %v; want 401", at, r)
		}
	}
	s.wantNothingOf(t, orderNo, n)
	refused := testutil.ToFloat64(s.instances[0].metrics.NoticesRefused("mockpay", "signature_stale"))
	if refused != 5 { // what is no time is no stale one
		t.Errorf("the metric shows %v stale signatures, want 5", refused)
	}
	for _, off := range []time.Duration{-tolerance + 2*time.Second, tolerance - 2*time.Second} {
		wantAck(t, s.deliver(0, "mockpay", config.DevMockpaySecret, now.Add(off), body))
	}
	s.wantFate(t, orderNo, paidOnce())
	s.wantSound()
}

// B68: an instance whose clock is off refuses and says so in its metric; the next delivery goes to one whose clock is right.
func TestAClockThatIsOffShowsAndLosesNothing(t *testing.T) {
	for _, off := range []time.Duration{6 * time.Minute, -6 * time.Minute} {
		s := newStack(t)
		s.sku(1, 1999, 1000)
		orderNo, n := s.offered(1001)
		s.instances[0].clock.advance(off)
		sent := s.instances[1].clock.now() // the channel's clock is right
		wantProblem(t, s.deliver(0, "mockpay", config.DevMockpaySecret, sent, s.marshal(n)), http.StatusUnauthorized, "signature_stale")
		s.wantNothingOf(t, orderNo, n)
		if got := testutil.ToFloat64(s.instances[0].metrics.NoticesRefused("mockpay", "signature_stale")); got != 1 {
			t.Errorf("the metric shows %v stale signatures, want 1", got)
		}
		wantAck(t, s.deliver(1, "mockpay", config.DevMockpaySecret, sent, s.marshal(n)))
		s.instances[0].clock.advance(-off)
		wantAck(t, s.deliver(0, "mockpay", config.DevMockpaySecret, sent, s.marshal(n)))
		s.wantFate(t, orderNo, paidOnce())
		s.wantSound()
	}
}

// refusal is a delivery that must not be taken for accepted.
type refusal struct {
	name   string
	send   func(s *stack, n mockpay.Notice) reply
	status int
	code   string
}

// edited delivers the notice's bytes after an edit, signed as they are then.
func edited(old, with string) func(*stack, mockpay.Notice) reply {
	return func(s *stack, n mockpay.Notice) reply {
		body := s.marshal(n)
		if !bytes.Contains(body, []byte(old)) {
			s.t.Errorf("the notice has no %s: %s", old, body)
		}
		return s.deliver(0, "mockpay", config.DevMockpaySecret, s.instances[0].clock.now(), bytes.Replace(body, []byte(old), []byte(with), 1))
	}
}

func signed(header func(s *stack, body []byte) string) func(*stack, mockpay.Notice) reply {
	return func(s *stack, n mockpay.Notice) reply {
		body := s.marshal(n)
		return s.post(0, "mockpay", header(s, body), body)
	}
}

func signatureRefusals() []refusal {
	good := func(s *stack, body []byte) string {
		return mockpay.SignatureHeader([]string{config.DevMockpaySecret}, s.instances[0].clock.now(), body)
	}
	const invalid = "signature_invalid"
	return []refusal{
		{"unsigned", signed(func(*stack, []byte) string { return "" }), 401, invalid},
		{"no time", signed(func(s *stack, b []byte) string { _, v1, _ := strings.Cut(good(s, b), ","); return v1 }), 401, invalid},
		{"no v1", signed(func(s *stack, b []byte) string { at, _, _ := strings.Cut(good(s, b), ","); return at }), 401, invalid},
		{"two times", signed(func(s *stack, b []byte) string { return "t=1," + good(s, b) }), 401, invalid},
		{"half a signature", signed(func(s *stack, b []byte) string { return good(s, b)[:len(good(s, b))-2] }), 401, invalid},
		{"garbage", signed(func(*stack, []byte) string { return "\x80;;=,=" }), 401, invalid},
		{"the other channel's secret", signed(func(s *stack, b []byte) string {
			return mockpay.SignatureHeader([]string{config.DevMockpay2Secret}, s.instances[0].clock.now(), b)
		}), 401, invalid},
		{"a signature over another body", signed(func(s *stack, b []byte) string { return good(s, append(b, ' ')) }), 401, invalid},
		{"a time that was not signed", signed(func(s *stack, b []byte) string {
			at, v1, _ := strings.Cut(good(s, b), ",")
			return strings.TrimRight(at, "0123456789") + fmt.Sprint(s.instances[0].clock.now().Unix()-1) + "," + v1
		}), 401, invalid},
		{"truncated on the way", func(s *stack, n mockpay.Notice) reply {
			body := s.marshal(n)
			return s.post(0, "mockpay", good(s, body), body[:len(body)-1])
		}, 401, invalid},
		{"re-encoded on the way", func(s *stack, n mockpay.Notice) reply {
			body := s.marshal(n)
			return s.post(0, "mockpay", good(s, body), bytes.ReplaceAll(body, []byte(`":`), []byte(`": `)))
		}, 401, invalid},
		{"oversized", func(s *stack, n mockpay.Notice) reply {
			body := append(s.marshal(n), bytes.Repeat([]byte(" "), 64<<10)...)
			return s.post(0, "mockpay", good(s, body), body)
		}, 413, "body_too_large"},
		{"a channel nobody knows", func(s *stack, n mockpay.Notice) reply {
			body := s.marshal(n)
			return s.post(0, "nopay", good(s, body), body)
		}, 404, "channel_not_found"},
		{"mockpay's notice at mockpay2", func(s *stack, n mockpay.Notice) reply {
			body := s.marshal(n)
			return s.post(0, "mockpay2", good(s, body), body)
		}, 401, invalid},
	}
}

// B06, B66, B72, B79: rightly signed bytes that two readers could take for different things.
func contentRefusals() []refusal {
	const invalid = "notice_invalid"
	list := []refusal{
		{"broken off", edited(`"}`, `"`), 400, invalid},
		{"a second document", edited(`"}`, `"}{}`), 400, invalid},
		{"a byte order mark", edited(`{`, "\ufeff{"), 400, invalid},
		{"no object", func(s *stack, _ mockpay.Notice) reply {
			return s.deliver(0, "mockpay", config.DevMockpaySecret, s.instances[0].clock.now(), []byte("null"))
		}, 400, invalid},
		{"amount twice", edited(`"amount":1999`, `"amount":1999,"amount":1`), 400, invalid},
		{"amount twice, other case", edited(`"amount":1999`, `"amount":1999,"AMOUNT":1`), 400, invalid},
		{"amount twice, once escaped", edited(`"amount":1999`, `"amount":1999,"amoun\u0074":1`), 400, invalid},
		{"a field that only folds equal", edited(`"amount":1999`, `"amount":1999,"ſ":1`), 400, invalid},
		{"a nested repeat", edited(`"amount":1999`, `"amount":{"a":1,"a":2}`), 400, invalid},
		{"an unknown field", edited(`{`, `{"more":1,`), 400, invalid},
		{"no amount", edited(`"amount":1999,`, ``), 400, invalid},
		{"no notify_id", edited(`"notify_id":"N`, `"notify_id":" N`), 400, invalid},
		{"an unknown event", edited(`payment.succeeded`, `payment.pending`), 400, invalid},
		{"a payment event with an out_refund_no", edited(`{`, `{"out_refund_no":"R1",`), 400, invalid},
		{"a refund event without an out_refund_no", edited(`payment.succeeded`, `refund.succeeded`), 400, invalid},
		{"a currency in small letters", edited(`CNY`, `cny`), 400, invalid},
		{"no time", edited(`"occurred_at":"2`, `"occurred_at":"x2`), 400, invalid},
	}
	for _, amount := range []string{
		`"1999"`, `19.99`, `1999.0`, `1.005`, `1999e0`, `1e2`, `-0`, `-1`, `01999`, `１９９９`, `9223372036854775808`, `null`, `true`,
	} {
		list = append(list, refusal{"amount " + amount, edited(`"amount":1999`, `"amount":`+amount), 400, invalid})
	}
	return list
}

// B06, B66, B68, B72, B73, B76, B77, B79: whatever is refused changes nothing, is not kept, and gets no answer that a channel
// could take for an acknowledgement. The good notice then has its effect.
func TestARefusedNoticeLeavesNothing(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	orderNo, n := s.offered(1001)
	refusals := append(signatureRefusals(), contentRefusals()...)
	for _, f := range refusals {
		r := f.send(s, n)
		if r.status != f.status || r.field("code") != f.code || strings.Contains(string(r.body), "success") {
			t.Errorf("%s: got %v; want %d %s", f.name, r, f.status, f.code)
		}
		wantProblem(t, r, f.status, f.code)
		s.wantNothingOf(t, orderNo, n)
	}
	if got := s.count("SELECT COUNT(*) FROM t_channel_notice"); got != 0 {
		t.Errorf("%d notices kept, want none", got)
	}
	s.tornNotice(t, n)
	wantAck(t, s.notify(0, n))
	s.wantFate(t, orderNo, paidOnce())
	s.wantSound()
}

// tornNotice sends a body that ends before its Content-Length.
func (s *stack) tornNotice(t *testing.T, n mockpay.Notice) {
	t.Helper()
	body := s.marshal(n)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.instances[0].url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/callbacks/mockpay HTTP/1.1\r\nHost: test\r\nMockpay-Signature: %s\r\nContent-Length: %d\r\n\r\n%s",
		mockpay.SignatureHeader([]string{config.DevMockpaySecret}, s.instances[0].clock.now(), body), len(body)+1, body)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("torn body: %v, %v; want 400", resp, err)
	}
}

// B66: the signature is over the bytes as they came, whatever their form; what they say is read once and exactly.
func TestTheBytesAsReceivedAreWhatIsSigned(t *testing.T) {
	for name, form := range map[string]func(string) string{
		"spaced":         func(s string) string { return strings.ReplaceAll(s, ",", "  ,\r\n\t") },
		"trailing line":  func(s string) string { return s + "\n" },
		"escaped":        func(s string) string { return strings.ReplaceAll(s, "mockpay", `m\u006fckpay`) },
		"fields shifted": func(s string) string { return `{"amount":1999,` + strings.Replace(s[1:], `"amount":1999,`, "", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 1999, 10)
			orderNo, n := s.offered(1001)
			body := []byte(form(string(s.marshal(n))))
			wantAck(t, s.deliver(0, "mockpay", config.DevMockpaySecret, s.instances[0].clock.now(), body))
			s.wantFate(t, orderNo, paidOnce())
			var kept []byte
			if err := s.db.QueryRow("SELECT body FROM t_channel_notice").Scan(&kept); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(kept, body) {
				t.Errorf("kept %q, want the bytes that were signed: %q", kept, body)
			}
			s.wantSound()
		})
	}
}

// B73: ten deliveries, two at a time, of every kind of event: each acknowledged to the byte, one effect.
func TestTenDeliveriesTwoAtATimeHaveOneEffect(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	orderNo, n := s.offered(1001)
	s.tenTimes(t, n)
	s.wantFate(t, orderNo, paidOnce())
	refund := s.must(http.StatusAccepted, refundCall(0, 1001, orderNo, 1999, key("refund"))).field("refund_no")
	s.round(0, "refunds.send")
	s.tenTimes(t, s.refundNoticeOf("refund.succeeded", refund))
	refunded := paidOnce()
	refunded.order, refunded.refunded = "REFUNDED", 1999
	s.wantFate(t, orderNo, refunded)
	s.tenTimes(t, n)
	s.wantFate(t, orderNo, refunded)
	if got := s.count("SELECT COUNT(*) FROM t_channel_notice WHERE status = 1"); got != 2 {
		t.Errorf("%d deliveries had an effect, want 2: one success, one refund", got)
	}
	s.wantSound()
}

func (s *stack) tenTimes(t *testing.T, n mockpay.Notice) {
	t.Helper()
	for range 5 {
		var pair [2]reply
		testenv.Together(2, func(i int) { pair[i] = s.notify(i, n) })
		wantAck(t, pair[0])
		wantAck(t, pair[1])
	}
}

// While a secret rotates either side may know both: some signature must be by a secret of ours.
func TestASecretRotatesWithoutLosingANotice(t *testing.T) {
	s := newStack(t, "MOCKPAY_SECRET=whsec_new,"+config.DevMockpaySecret)
	s.sku(1, 1999, 1000)
	for i, secrets := range [][]string{
		{config.DevMockpaySecret},              // the channel has not begun
		{"whsec_new", config.DevMockpaySecret}, // it signs with both
		{"whsec_newest", "whsec_new"},          // it is one ahead of us
		{"whsec_new"},                          // the old one is gone
	} {
		orderNo, n := s.offered(int64(1001 + i))
		body := s.marshal(n)
		wantAck(t, s.post(i, "mockpay", mockpay.SignatureHeader(secrets, s.instances[i%2].clock.now(), body), body))
		s.wantFate(t, orderNo, paidOnce())
	}
	orderNo, n := s.offered(1010)
	body := s.marshal(n)
	for _, secrets := range [][]string{{"whsec_newest"}, {"whsec_newest", config.DevMockpay2Secret}, {""}} {
		r := s.post(0, "mockpay", mockpay.SignatureHeader(secrets, s.instances[0].clock.now(), body), body)
		wantProblem(t, r, http.StatusUnauthorized, "signature_invalid")
	}
	s.wantNothingOf(t, orderNo, n)
	s.wantSound()
}

// The channel's own deliveries, repeated and reordered, while it changes its secret.
func TestTheChannelsOwnDeliveriesPayOnce(t *testing.T) {
	s := newStack(t, "MOCKPAY_SECRET=whsec_new,"+config.DevMockpaySecret)
	s.sku(1, 1999, 1000)
	if r := s.at(http.MethodPut, "/v1/secrets", `{"merchant_id":"`+mockpayMerchant+`","secrets":["whsec_new"]}`); r.status != http.StatusOK {
		t.Fatal(r)
	}
	s.faults(`{"notices":{"repeat":4}}`)
	orderNo := s.order(1001, 1)
	payNo := s.attempt(1001, orderNo, "mockpay")
	if r := s.at(http.MethodPost, "/v1/trades/"+payNo+"/pay", ""); r.status != http.StatusOK {
		t.Fatal(r)
	}
	testenv.Eventually(t, setupWait, "five deliveries arrive", func() error {
		if n := s.count("SELECT COUNT(*) FROM t_channel_notice"); n != 5 {
			return fmt.Errorf("%d of 5", n)
		}
		return nil
	})
	s.wantFate(t, orderNo, paidOnce())
	s.wantSound()
}
