package mockpay

import (
	"crypto/rand"
	"net/http"
	"time"

	"example.com/oncepay/internal/money"
)

// The states of a trade. All but PENDING are final.
const (
	TradePending   = "PENDING"
	TradeSucceeded = "SUCCEEDED"
	TradeFailed    = "FAILED"
	TradeClosed    = "CLOSED"
)

// Trade is a payment as the channel shows it.
type Trade struct {
	MerchantID string         `json:"merchant_id"`
	OutTradeNo string         `json:"out_trade_no"` // the merchant's number; one trade each
	TradeNo    string         `json:"trade_no"`     // the channel's number
	Amount     money.Amount   `json:"amount"`
	Currency   money.Currency `json:"currency"`
	Status     string         `json:"status"`
	PayURL     string         `json:"pay_url,omitzero"` // made for each answer
	PaidAt     *time.Time     `json:"paid_at"`          // null until SUCCEEDED
}

// trade is a Trade with what the channel keeps to itself.
type trade struct {
	Trade
	NotifyURL string    `json:"notify_url,omitzero"`
	DecidedAt time.Time `json:"decided_at"` // when it came into its status
}

// ChargeRequest is the body of POST /v1/trades.
type ChargeRequest struct {
	MerchantID string         `json:"merchant_id"`
	OutTradeNo string         `json:"out_trade_no"`
	Amount     money.Amount   `json:"amount"`
	Currency   money.Currency `json:"currency"`
	NotifyURL  string         `json:"notify_url"`
}

func (q ChargeRequest) check() error {
	switch {
	case q.Amount <= 0:
		return refuse(http.StatusBadRequest, "field_invalid", "amount is a positive number of minor units.")
	case !q.Currency.Valid():
		return refuse(http.StatusBadRequest, "field_invalid", "currency is an ISO 4217 code of three capital letters.")
	}
	if err := checkNotifyURL(q.NotifyURL); err != nil {
		return err
	}
	return checkNumber("out_trade_no", q.OutTradeNo)
}

// charge opens a trade, or returns the one that is there. The first notify_url stays: asking again changes nothing.
// The caller holds mu.
func (s *Server) charge(q ChargeRequest) (Trade, error) {
	if _, known := s.secrets[q.MerchantID]; !known {
		return Trade{}, errMerchant
	}
	if t, exists := s.trades[q.OutTradeNo]; exists {
		if t.MerchantID != q.MerchantID || t.Amount != q.Amount || t.Currency != q.Currency {
			return Trade{}, refuse(http.StatusConflict, "trade_differs", "There is a trade under this out_trade_no with another merchant, amount or currency.")
		}
		return t.Trade, nil
	}
	t := trade{
		Trade: Trade{
			// Random, not counted: a channel that forgets must not give out a number a second time.
			MerchantID: q.MerchantID, OutTradeNo: q.OutTradeNo, TradeNo: "T" + rand.Text(), Amount: q.Amount, Currency: q.Currency, Status: TradePending,
		},
		NotifyURL: q.NotifyURL, DecidedAt: s.now(),
	}
	return t.Trade, s.commit(kindCharge, t, nil)
}

// tradeOf finds a trade. The caller holds mu.
func (s *Server) tradeOf(outTradeNo string) (trade, error) {
	t, exists := s.trades[outTradeNo]
	if !exists {
		return trade{}, refuse(http.StatusNotFound, "trade_not_found", "There is no trade under this out_trade_no.")
	}
	return t, nil
}

// decide brings a PENDING trade into the status that kind (pay, fail or close) leads to. On a repeat it changes nothing.
// Both times it sends the notice, if wanted. A FAILED trade may be closed, which leaves it FAILED: what the merchant wants
// to know is that no money can come any more. The caller holds mu.
func (s *Server) decide(outTradeNo, kind string, notify bool) (Trade, error) {
	t, err := s.tradeOf(outTradeNo)
	if err != nil {
		return Trade{}, err
	}
	target := map[string]string{kindPay: TradeSucceeded, kindFail: TradeFailed, kindClose: TradeClosed}[kind]
	switch {
	case t.Status == TradePending:
		at := s.now()
		t.Status, t.DecidedAt = target, at
		if kind == kindPay {
			t.PaidAt = &at
		}
		if err := s.commit(kind, t, nil); err != nil {
			return Trade{}, err
		}
	case t.Status == target:
	case t.Status == TradeFailed && kind == kindClose:
		return t.Trade, nil
	case t.Status == TradeSucceeded:
		return Trade{}, refuse(http.StatusConflict, "trade_paid", "The trade is paid.").withTrade(t.Trade)
	case t.Status == TradeFailed:
		return Trade{}, refuse(http.StatusConflict, "trade_failed", "The trade has failed.").withTrade(t.Trade)
	default:
		return Trade{}, refuse(http.StatusConflict, "trade_closed", "The trade is closed.").withTrade(t.Trade)
	}
	if notify {
		s.notify(tradeNotice(t), t.NotifyURL)
	}
	return t.Trade, nil
}
