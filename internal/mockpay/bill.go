package mockpay

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"example.com/oncepay/internal/web"
)

// The kinds of a bill's lines. A reversal takes back a refund that had succeeded; a refund that never did has no line.
const (
	BillPayment        = "payment"
	BillRefund         = "refund"
	BillRefundReversal = "refund_reversal"
)

// billZone is the channel's own: its day is not the merchant's, as with the real ones in China. A fixed offset, since there
// is no summer time.
const (
	billZone       = "+08:00"
	billZoneOffset = 8 * 60 * 60 // seconds
)

// getBill answers GET /v1/bills/{date}: the money that moved on the channel's day, in order, as CSV with amounts in minor
// units and times in UTC; and GET /v1/bills/{date}.sha256: the hex SHA-256 of that file. The day of today is not complete.
func (s *Server) getBill(w http.ResponseWriter, r *http.Request) {
	date, wantHash := strings.CutSuffix(chi.URLParam(r, "date"), ".sha256")
	s.mu.Lock()
	fault := s.faults.Bill.take()
	s.mu.Unlock()
	body, err := s.bill(date, r.URL.Query().Get("merchant_id"), fault)
	if err != nil {
		web.Write(w, s.refused(r, err))
		return
	}
	sum := sha256.Sum256(body)
	if fault.WrongSHA {
		sum = sha256.Sum256(nil)
	}
	hash := hex.EncodeToString(sum[:])
	w.Header().Set("X-Channel-Timezone", billZone)
	w.Header().Set("X-Content-SHA256", hash)
	if wantHash {
		web.Write(w, web.Answer{Status: http.StatusOK, ContentType: "text/plain; charset=utf-8", Body: []byte(hash + "\n")})
		return
	}
	web.Write(w, web.Answer{Status: http.StatusOK, ContentType: "text/csv; charset=utf-8; header=present", Body: body})
}

func (s *Server) bill(date, merchantID string, fault BillFault) ([]byte, error) {
	if fault.Status != 0 {
		return nil, refuse(fault.Status, "fault", "This answer was asked for with PUT /v1/faults.")
	}
	zone := time.FixedZone(billZone, billZoneOffset)
	if _, err := time.ParseInLocation(time.DateOnly, date, zone); err != nil {
		return nil, refuse(http.StatusBadRequest, "field_invalid", "date is a day such as 2026-05-01.")
	}
	var b bytes.Buffer
	out := csv.NewWriter(&b)
	lines := [][]string{{"kind", "trade_no", "out_trade_no", "out_refund_no", "amount", "currency", "occurred_at"}}
	for _, e := range s.moneyMoved() {
		if e.At.In(zone).Format(time.DateOnly) != date || merchantID != "" && e.MerchantID != merchantID {
			continue
		}
		number := cmp.Or(e.OutRefundNo, e.TradeNo)
		if number == fault.Alter {
			e.Amount++
		}
		line := []string{
			e.Kind, e.TradeNo, e.OutTradeNo, e.OutRefundNo, strconv.FormatInt(int64(e.Amount), 10), string(e.Currency), e.At.Format(time.RFC3339Nano),
		}
		switch number {
		case fault.Drop:
		case fault.Repeat:
			lines = append(lines, line, line)
		default:
			lines = append(lines, line)
		}
	}
	if err := out.WriteAll(lines); err != nil {
		return nil, fmt.Errorf("write bill: %w", err)
	}
	return b.Bytes(), nil
}

// moneyMoved is the effects that moved money, their Kind being the bill's.
func (s *Server) moneyMoved() []Effect {
	s.mu.Lock()
	defer s.mu.Unlock()
	var moved []Effect
	returned := make(map[string]bool) // by out_refund_no
	for _, e := range s.effects {
		switch {
		case e.Kind == kindPay:
			e.Kind = BillPayment
		case e.Kind == kindRefundSucceeded:
			e.Kind, returned[e.OutRefundNo] = BillRefund, true
		case e.Kind == kindRefundFailed && returned[e.OutRefundNo]:
			e.Kind = BillRefundReversal
		default:
			continue
		}
		moved = append(moved, e)
	}
	return moved
}
