package mockpay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"example.com/oncepay/internal/money"
)

// Notice tells a merchant of a decision. NotifyID is the same in every delivery of it.
type Notice struct {
	NotifyID    string         `json:"notify_id"`
	Event       string         `json:"event"`
	MerchantID  string         `json:"merchant_id"`
	OutTradeNo  string         `json:"out_trade_no"`
	TradeNo     string         `json:"trade_no"`
	OutRefundNo string         `json:"out_refund_no,omitzero"`
	Amount      money.Amount   `json:"amount"`
	Currency    money.Currency `json:"currency"`
	OccurredAt  time.Time      `json:"occurred_at"` // of the decision, not of the delivery
}

// The events.
const (
	EventPaymentSucceeded = "payment.succeeded"
	EventPaymentFailed    = "payment.failed"
	EventPaymentClosed    = "payment.closed"
	EventRefundSucceeded  = "refund.succeeded"
	EventRefundFailed     = "refund.failed"
)

const (
	// acknowledgement is the only body that counts, to the byte.
	acknowledgement = "success"
	// noticeTimeout is what real channels give a merchant to answer (WeChat Pay: 5 s).
	noticeTimeout = 5 * time.Second
)

// tradeNotice tells of a trade's final status. A trade has one, so its number and status name the notice.
func tradeNotice(t trade) Notice {
	event := map[string]string{TradeSucceeded: EventPaymentSucceeded, TradeFailed: EventPaymentFailed, TradeClosed: EventPaymentClosed}[t.Status]
	return Notice{
		NotifyID: t.TradeNo + "-" + t.Status, Event: event, MerchantID: t.MerchantID, OutTradeNo: t.OutTradeNo, TradeNo: t.TradeNo,
		Amount: t.Amount, Currency: t.Currency, OccurredAt: t.DecidedAt,
	}
}

// refundNotice tells of a refund's status. A refund is in each status once, so its number and status name the notice.
func refundNotice(f refund) Notice {
	event := map[string]string{RefundSuccess: EventRefundSucceeded, RefundFailed: EventRefundFailed}[f.Status]
	return Notice{
		NotifyID: f.RefundID + "-" + f.Status, Event: event, MerchantID: f.MerchantID, OutTradeNo: f.OutTradeNo, TradeNo: f.TradeNo,
		OutRefundNo: f.OutRefundNo, Amount: f.Amount, Currency: f.Currency, OccurredAt: f.DecidedAt,
	}
}

// delivery is one notice on its way.
type delivery struct {
	notice Notice
	url    string
	delay  time.Duration
	copies int       // how often it is to be acknowledged
	behind *delivery // was due before, and leaves after this one's first attempt
}

// notify sends a notice, or does with it what the faults want. The caller holds mu.
func (s *Server) notify(n Notice, url string) {
	if url == "" {
		return
	}
	d := &delivery{notice: n, url: url, copies: 1}
	if s.heldBack != nil {
		d.behind, s.heldBack = s.heldBack, nil
		s.start(d)
		return
	}
	fault := s.faults.Notices.take()
	d.delay = milliseconds(fault.DelayMS)
	d.copies += fault.Repeat
	switch {
	case fault.Lose:
		s.cfg.Log.Info("notice lost on purpose", "notify_id", n.NotifyID)
	case fault.Reorder:
		s.heldBack = d
	default:
		s.start(d)
	}
}

// start delivers in the background, unless the server is closed. The caller holds mu.
func (s *Server) start(d *delivery) {
	if s.stopped.Err() == nil {
		s.background.Go(func() { s.deliver(d) })
	}
}

func (s *Server) deliver(d *delivery) {
	if !s.pause(s.stopped, d.delay) {
		return
	}
	for range d.copies {
		if !s.deliverCopy(d) {
			return
		}
	}
}

// deliverCopy sends a notice until it is acknowledged. It reports false if the schedule ran out or the server was closed.
func (s *Server) deliverCopy(d *delivery) bool {
	log := s.cfg.Log.With("notify_id", d.notice.NotifyID, "event", d.notice.Event)
	for attempt := 1; ; attempt++ {
		err := s.post(d)
		if d.behind != nil {
			behind := d.behind
			d.behind = nil
			s.background.Go(func() { s.deliver(behind) })
		}
		if err == nil {
			log.Info("notice acknowledged", "attempt", attempt)
			return true
		}
		if attempt > len(s.cfg.RetrySchedule) {
			log.Error("notice given up", "attempt", attempt, "error", err)
			return false
		}
		log.Warn("notice not acknowledged", "attempt", attempt, "error", err)
		if !s.pause(s.stopped, s.cfg.RetrySchedule[attempt-1]) {
			return false
		}
	}
}

// post delivers a notice once, signed with the secrets and the time of now. No error means acknowledged.
func (s *Server) post(d *delivery) error {
	body, err := json.Marshal(d.notice)
	if err != nil {
		return fmt.Errorf("encode notice: %w", err)
	}
	ctx, cancel := context.WithTimeout(s.stopped, noticeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send notice: %w", err)
	}
	s.mu.Lock()
	secrets := s.secrets[d.notice.MerchantID]
	s.mu.Unlock()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(HeaderSignature, SignatureHeader(secrets, s.cfg.Now(), body))
	resp, err := s.cfg.Client.Do(req)
	if err != nil {
		return fmt.Errorf("send notice: %w", err)
	}
	defer resp.Body.Close()
	// One byte more than the acknowledgement tells it from an answer that only begins like it.
	answer, err := io.ReadAll(io.LimitReader(resp.Body, int64(len(acknowledgement))+1))
	if err != nil {
		return fmt.Errorf("read acknowledgement: %w", err)
	}
	if resp.StatusCode != http.StatusOK || string(answer) != acknowledgement {
		return fmt.Errorf("the answer is %d %q, not 200 %q", resp.StatusCode, answer, acknowledgement)
	}
	return nil
}
