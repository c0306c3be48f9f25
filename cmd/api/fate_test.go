package main

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/mockpay"
	"example.com/oncepay/internal/payment"
	"example.com/oncepay/internal/testenv"
)

// fate is what became of an order and the money for it, in the terms a person would count.
type fate struct {
	order      string // its status
	payment    string // its newest attempt's status
	paid       int    // trades that paid it
	returned   int    // trades on their way back, with their automatic refunds
	forPerson  int    // trades that wait for a person
	credits    int    // postings of money that arrived
	messages   int    // order.paid in the outbox
	refunded   int    // minor units that went back
	exceptions string // kinds of open exceptions, in the order they were opened
}

// unpaid is the fate of an order nothing has happened to but an attempt to pay it.
func unpaid() fate { return fate{order: "INIT", payment: "PENDING"} }

// paidOnce is the fate every repeat must leave alone.
func paidOnce() fate {
	return fate{order: "PAID", payment: "SUCCEEDED", paid: 1, credits: 1, messages: 1}
}

func (s *stack) fateOf(orderNo string) fate {
	s.t.Helper()
	var f fate
	const attempt = `SELECT pay_no FROM t_payment WHERE order_no = o.order_no ORDER BY id DESC LIMIT 1`
	var user int64
	var payNo string
	err := s.db.QueryRow(`
		SELECT user_id, refunded_amount, COALESCE((`+attempt+`), ''),
			(SELECT COUNT(*) FROM t_trade t WHERE t.order_no = o.order_no AND disposition = 0),
			(SELECT COUNT(*) FROM t_trade t JOIN t_refund r ON r.channel = t.channel AND r.trade_no = t.trade_no AND r.auto = 1
				WHERE t.order_no = o.order_no AND disposition = 1),
			(SELECT COUNT(*) FROM t_trade t WHERE t.order_no = o.order_no AND disposition = 2),
			(SELECT COUNT(*) FROM t_ledger_entry l WHERE l.order_no = o.order_no AND kind = 'pay' AND account LIKE 'channel:%'),
			(SELECT COUNT(*) FROM t_outbox x WHERE x.partition_key = o.order_no AND topic = 'order.paid'),
			COALESCE((SELECT GROUP_CONCAT(kind ORDER BY id) FROM t_exception e WHERE e.order_no = o.order_no AND e.status = 0), '')
		FROM t_order o WHERE order_no = ?`, orderNo).
		Scan(&user, &f.refunded, &payNo, &f.paid, &f.returned, &f.forPerson, &f.credits, &f.messages, &f.exceptions)
	if err != nil {
		s.t.Fatal(err)
	}
	f.order = s.status(user, orderNo)
	if payNo != "" {
		f.payment = s.must(http.StatusOK, call{as: buyer(user), path: "/v1/payments/" + payNo}).field("status")
	}
	return f
}

func (s *stack) wantFate(t *testing.T, orderNo string, want fate) {
	t.Helper()
	if got := s.fateOf(orderNo); got != want {
		t.Errorf("order %s has the fate\n%+v, want\n%+v", orderNo, got, want)
	}
}

// wantAck asserts the channel's acknowledgement, byte for byte.
func wantAck(t *testing.T, r reply) {
	t.Helper()
	if r.err != nil || r.status != http.StatusOK || string(r.body) != "success" || r.header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("got %v (%s); want 200 and exactly success", r, r.header.Get("Content-Type"))
	}
}

// kept is what the service remembers of a delivery.
type kept struct{ status, layer string }

// notices lists what became of the deliveries under a notify_id, oldest first.
func (s *stack) notices(notifyID string) []kept {
	s.t.Helper()
	rows, err := s.db.Query("SELECT status, layer FROM t_channel_notice WHERE notify_id = ? ORDER BY id", notifyID)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	var list []kept
	for rows.Next() {
		var became payment.Disposal
		var k kept
		if err := rows.Scan(&became, &k.layer); err != nil {
			s.t.Fatal(err)
		}
		k.status = became.String()
		list = append(list, k)
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	return list
}

// marshal encodes a notice.
func (s *stack) marshal(n mockpay.Notice) []byte {
	s.t.Helper()
	body, err := json.Marshal(n)
	if err != nil {
		s.t.Fatal(err)
	}
	return body
}

// notify2 is notify for channel mockpay2.
func (s *stack) notify2(on int, n mockpay.Notice) reply {
	s.t.Helper()
	return s.deliver(on, "mockpay2", config.DevMockpay2Secret, s.instances[on%2].clock.now(), s.marshal(n))
}

// decide lets something happen at the channel without a notice: verb is pay, fail or close of a trade.
func (s *stack) decide(payNo, verb string) {
	s.t.Helper()
	if r := s.at(http.MethodPost, "/v1/trades/"+payNo+"/"+verb+"?notify=off", ""); r.status != http.StatusOK {
		s.t.Fatalf("%s: %v", verb, r)
	}
}

// refunding returns a paid order with a refund of so much that the channel has taken on.
func (s *stack) refunding(user, amount int64) (orderNo, refundNo string) {
	s.t.Helper()
	orderNo, _ = s.paid(user)
	refundNo = s.must(http.StatusAccepted, refundCall(0, user, orderNo, amount, key("refund-%s", orderNo))).field("refund_no")
	s.round(0, "refunds.send")
	if n := s.effects("refund", refundNo); n != 1 {
		s.t.Fatalf("the channel has %d refunds %s, want one", n, refundNo)
	}
	return orderNo, refundNo
}

// later moves a notice's occurred_at, by the channel's clock.
func later(n mockpay.Notice, d time.Duration) mockpay.Notice {
	n.OccurredAt = n.OccurredAt.Add(d)
	return n
}

var number = regexp.MustCompile(`[0-9a-f]{32}`)

// early begins an attempt on channel mockpay and holds it before its row is committed, with its trade opened at the channel:
// so a notice can come before the payment it speaks of. finish lets the attempt go on and returns its answer.
func (s *stack) early(t *testing.T, user int64, orderNo string) (payNo string, finish func() reply) {
	t.Helper()
	proxy := s.instances[0].mysql
	gate := testenv.NewGate(t)
	proxy.ClearLog()
	proxy.On(testenv.Prefix("COMMIT"), 1, testenv.Hold(gate))
	answered := s.background(payCall(0, user, orderNo, "mockpay", key("early-%s", orderNo)))
	gate.WaitEntered(t, 1)
	for _, e := range proxy.Log() {
		if text := strings.TrimSpace(e.Cmd); strings.HasPrefix(text, "INSERT INTO t_payment") {
			payNo = number.FindString(text)
		}
	}
	// As our own call will do: the channel gives the trade that is there.
	r := s.at(http.MethodPost, "/v1/trades", `{"merchant_id":"`+mockpayMerchant+`","out_trade_no":"`+payNo+`","amount":1999,"currency":"CNY","notify_url":""}`)
	if r.status != http.StatusOK {
		t.Fatalf("open trade %q: %v", payNo, r)
	}
	return payNo, func() reply {
		gate.Open()
		return <-answered
	}
}
