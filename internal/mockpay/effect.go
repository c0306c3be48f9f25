package mockpay

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/web"
)

// The kinds of calls. All but the queries name an effect, too.
const (
	kindCharge          = "charge"
	kindPay             = "pay"
	kindFail            = "fail"
	kindClose           = "close"
	kindQuery           = "query"
	kindRefund          = "refund"
	kindRefundSucceeded = "refund_succeeded"
	kindRefundFailed    = "refund_failed"
	kindRefundQuery     = "refund_query"
)

// Effect is a change that really happened. A repeat and a refusal have none.
type Effect struct {
	Seq         int            `json:"seq"` // from 1, without gaps
	Kind        string         `json:"kind"`
	MerchantID  string         `json:"merchant_id"`
	OutTradeNo  string         `json:"out_trade_no"`
	TradeNo     string         `json:"trade_no"`
	OutRefundNo string         `json:"out_refund_no,omitzero"`
	Amount      money.Amount   `json:"amount"`
	Currency    money.Currency `json:"currency"`
	At          time.Time      `json:"at"`
}

// Arrivals compares how often a call came with how often it did something.
type Arrivals struct {
	Kind       string `json:"kind"`
	Number     string `json:"number"`      // the out_trade_no or out_refund_no
	Arrived    int    `json:"arrived"`     // well-formed calls since the start, repeats and refusals included
	TookEffect int    `json:"took_effect"` // effects, those of the journal included
}

// call names what a client may send more than once.
type call struct{ kind, number string }

// record is one effect with the state it left: a line of the journal. Refund is nil for effects on trades.
type record struct {
	Effect Effect  `json:"effect"`
	Trade  trade   `json:"trade"`
	Refund *refund `json:"refund,omitzero"`
}

// commit makes an effect happen: first in the journal, then in memory. If it returns an error, nothing happened.
// The caller holds mu.
func (s *Server) commit(kind string, t trade, f *refund) error {
	rec := record{Trade: t, Refund: f, Effect: Effect{
		Seq: len(s.effects) + 1, Kind: kind, MerchantID: t.MerchantID, OutTradeNo: t.OutTradeNo, TradeNo: t.TradeNo,
		Amount: t.Amount, Currency: t.Currency, At: t.DecidedAt,
	}}
	if f != nil {
		rec.Effect.OutRefundNo, rec.Effect.Amount, rec.Effect.At = f.OutRefundNo, f.Amount, f.DecidedAt
	}
	if err := s.journal.append(rec); err != nil {
		return err
	}
	s.apply(rec)
	s.cfg.Log.Info("effect", "kind", kind, "out_trade_no", t.OutTradeNo, "out_refund_no", rec.Effect.OutRefundNo, "seq", rec.Effect.Seq)
	return nil
}

// apply changes memory: for a new effect, and for one read from the journal.
func (s *Server) apply(rec record) {
	number := rec.Trade.OutTradeNo
	s.trades[number] = rec.Trade
	if rec.Refund != nil {
		number = rec.Refund.OutRefundNo
		s.refunds[number] = *rec.Refund
	}
	s.effects = append(s.effects, rec.Effect)
	s.took[call{rec.Effect.Kind, number}]++
}

// getEffects answers GET /v1/effects: all of them on one page, in the order in which they happened, because whoever counts
// needs one consistent look.
func (s *Server) getEffects(*http.Request) (web.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	arrivals := make([]Arrivals, 0, len(s.calls))
	for c, n := range s.calls {
		arrivals = append(arrivals, Arrivals{Kind: c.kind, Number: c.number, Arrived: n, TookEffect: s.took[c]})
	}
	slices.SortFunc(arrivals, func(a, b Arrivals) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Number, b.Number))
	})
	return web.JSON(http.StatusOK, struct {
		Data     []Effect   `json:"data"`
		Arrivals []Arrivals `json:"arrivals"`
	}{s.effects, arrivals})
}
