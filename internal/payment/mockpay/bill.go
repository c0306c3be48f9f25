package mockpay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/payment"
)

const (
	// billZone is the channel's own: it has no summer time, so that an offset is enough. The channel says it with each bill.
	billZone       = "+08:00"
	billZoneOffset = 8 * 60 * 60 // seconds
	// maxBill bounds what is read of a bill: some 60 000 lines. Twice that, escaped, still passes as one statement under the
	// 16 MiB that MariaDB takes by default.
	maxBill = 8 << 20
)

// Zone is payment.Channel's.
func (c *Channel) Zone() *time.Location { return time.FixedZone(billZone, billZoneOffset) }

// Bill is payment.Channel's. The hash is compared before anything is read.
func (c *Channel) Bill(ctx context.Context, day string) (payment.Bill, error) {
	header, raw, err := c.download(ctx, "/v1/bills/"+url.PathEscape(day)+"?merchant_id="+url.QueryEscape(c.MerchantID))
	if err != nil {
		return payment.Bill{}, err
	}
	sum := sha256.Sum256(raw)
	b := payment.Bill{Day: day, Raw: raw, SHA256: hex.EncodeToString(sum[:])}
	if got := header.Values("X-Content-SHA256"); len(got) != 1 || got[0] != b.SHA256 {
		return payment.Bill{}, fmt.Errorf("%w: the channel says %q, the bytes have %s", payment.ErrBillChecksum, got, b.SHA256)
	}
	if got := header.Values("X-Channel-Timezone"); len(got) != 1 || got[0] != billZone {
		return payment.Bill{}, fmt.Errorf("%w: its day is of time zone %q, not %s", payment.ErrBillUnreadable, got, billZone)
	}
	if b.Lines, err = parseBill(raw); err != nil {
		return payment.Bill{}, fmt.Errorf("%w: %w", payment.ErrBillUnreadable, err)
	}
	return b, nil
}

// download reads a whole file. Anything but 200 is no file, whoever said it.
func (c *Channel) download(ctx context.Context, path string) (http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.BaseURL+path, http.NoBody)
	if err != nil {
		return nil, nil, fmt.Errorf("mockpay: %w", err)
	}
	resp, err := c.Client.Do(req)
	if err != nil {
		return nil, nil, fmt.Errorf("mockpay: GET %s: %w", path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("mockpay: GET %s: status %d", path, resp.StatusCode)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxBill+1))
	if err != nil {
		return nil, nil, fmt.Errorf("mockpay: GET %s: read answer: %w", path, err)
	}
	if len(raw) > maxBill {
		return nil, nil, fmt.Errorf("%w: it has more than %d bytes", payment.ErrBillUnreadable, maxBill)
	}
	return resp.Header, raw, nil
}

// parseBill reads a bill as a whole or not at all: a line that is left out would be money that is not looked for.
func parseBill(raw []byte) ([]payment.BillLine, error) {
	columns := []string{"kind", "trade_no", "out_trade_no", "out_refund_no", "amount", "currency", "occurred_at"}
	in := csv.NewReader(bytes.NewReader(raw))
	in.FieldsPerRecord = len(columns)
	records, err := in.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(records) == 0 || !slices.Equal(records[0], columns) {
		return nil, fmt.Errorf("its columns are not %q", columns)
	}
	lines := make([]payment.BillLine, 0, len(records)-1)
	for i, record := range records[1:] {
		line, err := parseBillLine(record)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i+1, err)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func parseBillLine(f []string) (payment.BillLine, error) {
	l := payment.BillLine{Kind: payment.BillKind(f[0]), TradeNo: f[1], PayNo: f[2], RefundNo: f[3], Currency: money.Currency(f[5])}
	switch l.Kind {
	case payment.BillPayment, payment.BillRefund, payment.BillReversal:
	default:
		return l, fmt.Errorf("kind %q is not known", l.Kind)
	}
	if !token(l.TradeNo) || !token(l.PayNo) {
		return l, fmt.Errorf("trade_no %q and out_trade_no %q are not both 1 to 64 visible ASCII characters", l.TradeNo, l.PayNo)
	}
	if refund := l.Kind != payment.BillPayment; refund != (l.RefundNo != "") || refund && !token(l.RefundNo) {
		return l, fmt.Errorf("a %s has out_refund_no %q", l.Kind, l.RefundNo)
	}
	if err := l.Amount.UnmarshalJSON([]byte(f[4])); err != nil { // whole minor units, nothing else
		return l, err
	}
	if l.Amount < 0 {
		return l, fmt.Errorf("amount %d is negative", l.Amount)
	}
	if !l.Currency.Valid() {
		return l, fmt.Errorf("currency %q is not an ISO 4217 code", l.Currency)
	}
	at, err := time.Parse(time.RFC3339Nano, f[6])
	if err != nil {
		return l, err
	}
	l.At = at.UTC().Truncate(time.Microsecond)
	if y := l.At.Year(); y < 1970 || y > 9999 { // what DATETIME holds
		return l, fmt.Errorf("occurred_at %s is out of range", f[6])
	}
	return l, nil
}
