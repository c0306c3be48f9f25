package mockpay

import (
	"crypto/rand"
	"net/http"
	"time"

	"example.com/oncepay/internal/money"
)

// The states of a refund. SUCCESS may still become FAILED: the bank returns the money.
const (
	RefundProcessing = "PROCESSING"
	RefundSuccess    = "SUCCESS"
	RefundFailed     = "FAILED"
)

// Refund is a refund as the channel shows it.
type Refund struct {
	MerchantID  string         `json:"merchant_id"`
	OutRefundNo string         `json:"out_refund_no"` // the merchant's number; one refund each
	OutTradeNo  string         `json:"out_trade_no"`
	TradeNo     string         `json:"trade_no"`
	RefundID    string         `json:"refund_id"` // the channel's number
	Amount      money.Amount   `json:"amount"`
	Currency    money.Currency `json:"currency"`
	Status      string         `json:"status"`
}

// refund is a Refund with what the channel keeps to itself.
type refund struct {
	Refund
	NotifyURL string    `json:"notify_url,omitzero"`
	DecidedAt time.Time `json:"decided_at"` // when it came into its status
}

// RefundRequest is the body of POST /v1/refunds. TradeNo may be left out; if it is there, it must be the trade's own.
type RefundRequest struct {
	MerchantID  string       `json:"merchant_id"`
	OutRefundNo string       `json:"out_refund_no"`
	OutTradeNo  string       `json:"out_trade_no"`
	TradeNo     string       `json:"trade_no,omitzero"`
	Amount      money.Amount `json:"amount"`
	NotifyURL   string       `json:"notify_url"`
}

func (q RefundRequest) check() error {
	if q.Amount <= 0 {
		return refuse(http.StatusBadRequest, "field_invalid", "amount is a positive number of minor units.")
	}
	if err := checkNotifyURL(q.NotifyURL); err != nil {
		return err
	}
	if err := checkNumber("out_trade_no", q.OutTradeNo); err != nil {
		return err
	}
	return checkNumber("out_refund_no", q.OutRefundNo)
}

// accept takes a refund on, or returns the one that is there. The first notify_url stays. The caller holds mu.
func (s *Server) accept(q RefundRequest) (Refund, error) {
	t, err := s.tradeOf(q.OutTradeNo)
	if err != nil {
		return Refund{}, err
	}
	if q.MerchantID != t.MerchantID {
		return Refund{}, errMerchant
	}
	if q.TradeNo != "" && q.TradeNo != t.TradeNo {
		return Refund{}, refuse(http.StatusConflict, "trade_mismatch", "out_trade_no and trade_no name different trades.")
	}
	if f, exists := s.refunds[q.OutRefundNo]; exists {
		if f.OutTradeNo != q.OutTradeNo || f.Amount != q.Amount {
			return Refund{}, refuse(http.StatusConflict, "refund_differs", "There is a refund under this out_refund_no with another trade or amount.")
		}
		return f.Refund, nil
	}
	if t.Status != TradeSucceeded {
		return Refund{}, refuse(http.StatusConflict, "trade_not_paid", "The trade is not paid, so there is nothing to return.").withTrade(t.Trade)
	}
	if left := t.Amount - s.refunded(t.OutTradeNo); q.Amount > left {
		return Refund{}, refuse(http.StatusConflict, "refund_exceeds_paid", "Of this trade %d can still be returned.", left).withTrade(t.Trade)
	}
	f := refund{
		Refund: Refund{
			MerchantID: t.MerchantID, OutRefundNo: q.OutRefundNo, OutTradeNo: t.OutTradeNo, TradeNo: t.TradeNo, RefundID: "R" + rand.Text(),
			Amount: q.Amount, Currency: t.Currency, Status: RefundProcessing,
		},
		NotifyURL: q.NotifyURL, DecidedAt: s.now(),
	}
	if err := s.commit(kindRefund, t, &f); err != nil {
		return Refund{}, err
	}
	s.decideLater(f)
	return f.Refund, nil
}

// refunded is the sum of a trade's refunds that are not FAILED. It cannot overflow: each of them was within the cap.
func (s *Server) refunded(outTradeNo string) money.Amount {
	var sum money.Amount
	for _, f := range s.refunds {
		if f.OutTradeNo == outTradeNo && f.Status != RefundFailed {
			sum += f.Amount
		}
	}
	return sum
}

// refundOf finds a refund. The caller holds mu.
func (s *Server) refundOf(outRefundNo string) (refund, error) {
	f, exists := s.refunds[outRefundNo]
	if !exists {
		return refund{}, refuse(http.StatusNotFound, "refund_not_found", "There is no refund under this out_refund_no.")
	}
	return f, nil
}

// finish decides a refund (kind is refund_succeeded or refund_failed). On a repeat it changes nothing; both times it sends
// the notice, if wanted. The caller holds mu.
func (s *Server) finish(outRefundNo, kind string, notify bool) (Refund, error) {
	f, err := s.refundOf(outRefundNo)
	if err != nil {
		return Refund{}, err
	}
	target := RefundSuccess
	if kind == kindRefundFailed {
		target = RefundFailed
	}
	switch {
	case f.Status == target:
	case f.Status == RefundFailed:
		return Refund{}, refuse(http.StatusConflict, "refund_failed", "The refund has failed.").withRefund(f.Refund)
	default:
		f.Status, f.DecidedAt = target, s.now()
		if err := s.commit(kind, s.trades[f.OutTradeNo], &f); err != nil {
			return Refund{}, err
		}
	}
	if notify {
		s.notify(refundNotice(f), f.NotifyURL)
	}
	return f.Refund, nil
}

// decideLater lets a PROCESSING refund succeed by itself, if refunds are to. Somebody may decide otherwise before.
// The caller holds mu.
func (s *Server) decideLater(f refund) {
	if s.stopped.Err() != nil || f.Status != RefundProcessing || s.faults.RefundMode != RefundAuto {
		return
	}
	after := milliseconds(s.faults.AutoRefundMS)
	s.background.Go(func() {
		if !s.pause(s.stopped, after) {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.refunds[f.OutRefundNo].Status != RefundProcessing {
			return
		}
		if _, err := s.finish(f.OutRefundNo, kindRefundSucceeded, true); err != nil {
			s.cfg.Log.Error("refund does not succeed by itself", "out_refund_no", f.OutRefundNo, "error", err)
		}
	})
}
