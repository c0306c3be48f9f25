// Package mockpay is the adapter to the fake channel (contract section 5), written as one to a real channel would be: over
// HTTP, with nothing shared but the documented protocol.
package mockpay

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/payment"
	"example.com/oncepay/internal/web"
)

// SignatureHeader carries a notice's time and signatures: "t=<unix seconds>,v1=<hex>", several v1 while a secret rotates.
const SignatureHeader = "Mockpay-Signature"

// maxAnswer bounds what is read of an answer; honest ones are under a kilobyte.
const maxAnswer = 64 << 10

// Channel talks to one mockpay server as one merchant.
type Channel struct {
	ChannelName string
	MerchantID  string
	BaseURL     string   // without a slash at its end
	Secrets     []string // any of them may have signed a notice
	Tolerance   time.Duration
	Client      *http.Client
}

// Name is the channel's name in our routes.
func (c *Channel) Name() string { return c.ChannelName }

// Merchant is who we are to it.
func (c *Channel) Merchant() string { return c.MerchantID }

type trade struct {
	TradeNo  string         `json:"trade_no"`
	Status   string         `json:"status"`
	PayURL   string         `json:"pay_url"`
	Amount   money.Amount   `json:"amount"`
	Currency money.Currency `json:"currency"`
	At       time.Time      `json:"paid_at"`
}

func (t trade) to() (payment.Trade, error) {
	out := payment.Trade{TradeNo: t.TradeNo, PayURL: t.PayURL, Amount: t.Amount, Currency: t.Currency, At: t.At}
	switch t.Status {
	case "PENDING":
		out.Status = payment.TradePending
	case "SUCCEEDED":
		out.Status = payment.TradeSucceeded
	case "FAILED":
		out.Status = payment.TradeFailed
	case "CLOSED":
		out.Status = payment.TradeClosed
	default:
		return payment.Trade{}, fmt.Errorf("mockpay: trade status %q is not known", t.Status)
	}
	return out, nil
}

// Charge is payment.Channel's.
func (c *Channel) Charge(ctx context.Context, charge payment.Charge) (payment.Trade, error) {
	return c.trade(ctx, http.MethodPost, "/v1/trades", map[string]any{
		"merchant_id": c.MerchantID, "out_trade_no": charge.PayNo, "amount": charge.Amount, "currency": charge.Currency, "notify_url": charge.NotifyURL,
	})
}

// Query is payment.Channel's.
func (c *Channel) Query(ctx context.Context, payNo string) (payment.Trade, error) {
	return c.trade(ctx, http.MethodGet, "/v1/trades/"+url.PathEscape(payNo), nil)
}

// Close is payment.Channel's. mockpay refuses to close a paid trade; what it is then is asked for.
func (c *Channel) Close(ctx context.Context, payNo string) (payment.Trade, error) {
	t, err := c.trade(ctx, http.MethodPost, "/v1/trades/"+url.PathEscape(payNo)+"/close", map[string]any{})
	if refused, ok := err.(*payment.Refused); ok && refused.Code == "trade_paid" {
		return c.Query(ctx, payNo)
	}
	return t, err
}

// Refund is payment.Channel's.
func (c *Channel) Refund(ctx context.Context, r payment.RefundOrder) (payment.RefundState, error) {
	return c.refund(ctx, http.MethodPost, "/v1/refunds", map[string]any{
		"merchant_id": c.MerchantID, "out_refund_no": r.RefundNo, "out_trade_no": r.PayNo, "trade_no": r.TradeNo, "amount": r.Amount, "notify_url": r.NotifyURL,
	})
}

// QueryRefund is payment.Channel's.
func (c *Channel) QueryRefund(ctx context.Context, refundNo string) (payment.RefundState, error) {
	return c.refund(ctx, http.MethodGet, "/v1/refunds/"+url.PathEscape(refundNo), nil)
}

func (c *Channel) trade(ctx context.Context, method, path string, body any) (payment.Trade, error) {
	var t trade
	if err := c.call(ctx, method, path, body, &t); err != nil {
		return payment.Trade{}, err
	}
	return t.to()
}

func (c *Channel) refund(ctx context.Context, method, path string, body any) (payment.RefundState, error) {
	var r struct {
		Status payment.RefundStatus `json:"status"`
		At     time.Time            `json:"decided_at"`
	}
	if err := c.call(ctx, method, path, body, &r); err != nil {
		return payment.RefundState{}, err
	}
	return payment.RefundState{Status: r.Status, At: r.At}, nil
}

// call does one exchange. The channel's own "not found" is ErrNotThere, any other refusal of its own a definite no; everything else, a cut connection above all, leaves
// the outcome unknown.
func (c *Channel) call(ctx context.Context, method, path string, body, into any) error {
	var payload io.Reader = http.NoBody
	if body != nil {
		b, err := json.Marshal(body, json.Deterministic(true))
		if err != nil {
			return fmt.Errorf("mockpay: encode: %w", err)
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.BaseURL+path, payload)
	if err != nil {
		return fmt.Errorf("mockpay: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Client.Do(req)
	if err != nil {
		return fmt.Errorf("mockpay: %s %s: %w", method, path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("mockpay: %s %s: read answer: %w", method, path, err)
	}
	switch {
	case resp.StatusCode < http.StatusMultipleChoices:
		if err := json.Unmarshal(answer, into); err != nil {
			return fmt.Errorf("mockpay: %s %s: answer is not understood: %w", method, path, err)
		}
		return nil
	case resp.StatusCode < http.StatusInternalServerError && resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusRequestTimeout:
		var problem struct {
			Code   string `json:"code"`
			Detail string `json:"detail"`
		}
		_ = json.Unmarshal(answer, &problem) // without it the refusal is a refusal all the same
		switch {
		case problem.Code == "trade_not_found" || problem.Code == "refund_not_found":
			return payment.ErrNotThere
		case resp.StatusCode == http.StatusNotFound: // of a proxy, or of a wrong address: it says nothing of the trade
			return fmt.Errorf("mockpay: %s %s: status 404 without the channel's own code", method, path)
		}
		return &payment.Refused{Code: problem.Code, Detail: problem.Detail}
	default:
		return fmt.Errorf("mockpay: %s %s: status %d", method, path, resp.StatusCode)
	}
}

// Verify is payment.Channel's: one of the signatures must be ours, over the bytes as received, and the time they were made
// within the tolerance of now, in both directions.
func (c *Channel) Verify(header http.Header, body []byte, now time.Time) error {
	refused := func(format string, args ...any) error {
		return apperr.New(apperr.Unauthenticated, "signature_invalid", format, args...)
	}
	t, signatures, err := parseSignature(header.Values(SignatureHeader))
	if err != nil {
		return refused("%v", err)
	}
	if skew := now.Unix() - t; skew > int64(c.Tolerance.Seconds()) || skew < -int64(c.Tolerance.Seconds()) {
		return apperr.New(apperr.Unauthenticated, "signature_stale", "The signature was made %d seconds from now; %d are allowed.", skew, int64(c.Tolerance.Seconds()))
	}
	for _, secret := range c.Secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "%d.", t)
		mac.Write(body)
		want := mac.Sum(nil)
		for _, got := range signatures {
			if hmac.Equal(got, want) { // takes the same time however much of it is right
				return nil
			}
		}
	}
	return refused("No signature over these bytes is ours.")
}

// maxSignatures bounds the work a stranger can cause; a rotation has two.
const maxSignatures = 10

// maxTime keeps the arithmetic on times far from overflow: the year 9999.
const maxTime = 253402300799

func parseSignature(lines []string) (t int64, signatures [][]byte, err error) {
	if len(lines) != 1 {
		return 0, nil, fmt.Errorf("there are %d %s headers, not one", len(lines), SignatureHeader)
	}
	timed := false
	for part := range strings.SplitSeq(lines[0], ",") {
		name, value, found := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case !found:
			return 0, nil, fmt.Errorf("%s is malformed", SignatureHeader)
		case name == "t":
			t, err = strconv.ParseInt(value, 10, 64)
			if err != nil || t < 0 || t > maxTime || timed || strconv.FormatInt(t, 10) != value {
				return 0, nil, fmt.Errorf("%s has no one time", SignatureHeader)
			}
			timed = true
		case name == "v1":
			signature, err := hex.DecodeString(value)
			if err != nil || len(signature) != sha256.Size {
				return 0, nil, fmt.Errorf("%s has a malformed v1", SignatureHeader)
			}
			signatures = append(signatures, signature)
		}
	}
	if !timed || len(signatures) == 0 || len(signatures) > maxSignatures {
		return 0, nil, fmt.Errorf("%s needs a time and 1 to %d v1 signatures", SignatureHeader, maxSignatures)
	}
	return t, signatures, nil
}

type notice struct {
	NotifyID    string         `json:"notify_id"`
	Event       string         `json:"event"`
	MerchantID  string         `json:"merchant_id"`
	OutTradeNo  string         `json:"out_trade_no"`
	TradeNo     string         `json:"trade_no"`
	OutRefundNo string         `json:"out_refund_no"`
	Amount      *money.Amount  `json:"amount"`
	Currency    money.Currency `json:"currency"`
	OccurredAt  time.Time      `json:"occurred_at"`
}

// ParseNotice is payment.Channel's. One strict parser reads the verified bytes once; what it cannot read for certain, a
// repeated field or an event that does not fit its content, is refused and not acknowledged.
func (c *Channel) ParseNotice(body []byte) (payment.Notice, error) {
	invalid := func(format string, args ...any) *apperr.Error {
		return apperr.New(apperr.Invalid, "notice_invalid", format, args...)
	}
	var n notice
	if err := web.UnmarshalStrict(body, &n); err != nil {
		return payment.Notice{}, invalid("The notice is not one JSON object with the documented fields.").Wrap(err)
	}
	refund := strings.HasPrefix(n.Event, "refund.")
	for name, value := range map[string]string{"notify_id": n.NotifyID, "merchant_id": n.MerchantID, "out_trade_no": n.OutTradeNo, "trade_no": n.TradeNo} {
		if !token(value) {
			return payment.Notice{}, invalid("%s is not 1 to 64 visible ASCII characters.", name)
		}
	}
	switch event := payment.Event(n.Event); event {
	case payment.EventPaid, payment.EventPayFailed, payment.EventPayClosed, payment.EventRefunded, payment.EventRefundFailed:
	default:
		return payment.Notice{}, invalid("The event is not known.")
	}
	switch {
	case refund && !token(n.OutRefundNo):
		return payment.Notice{}, invalid("A refund's notice names its out_refund_no.")
	case !refund && n.OutRefundNo != "":
		return payment.Notice{}, invalid("A payment's notice names no out_refund_no.")
	case n.Amount == nil || *n.Amount < 0:
		return payment.Notice{}, invalid("amount is a whole number of minor units.")
	case !n.Currency.Valid():
		return payment.Notice{}, invalid("currency is an ISO 4217 code.")
	case n.OccurredAt.UTC().Year() < 1970 || n.OccurredAt.UTC().Year() > 9999: // what DATETIME holds
		return payment.Notice{}, invalid("occurred_at is a time.")
	}
	return payment.Notice{NotifyID: n.NotifyID, Fact: payment.Fact{
		Event: payment.Event(n.Event), Channel: c.ChannelName, Merchant: n.MerchantID, PayNo: n.OutTradeNo, TradeNo: n.TradeNo,
		RefundNo: n.OutRefundNo, Amount: *n.Amount, Currency: n.Currency, OccurredAt: n.OccurredAt.UTC().Truncate(time.Microsecond), Source: "notice",
	}}, nil
}

// token reports whether a channel's id fits our columns and compares byte for byte there: visible ASCII, no space that a
// collation would ignore.
func token(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// Acknowledge is payment.Channel's.
func (c *Channel) Acknowledge() payment.Acknowledgement {
	return payment.Acknowledgement{Status: http.StatusOK, ContentType: "text/plain; charset=utf-8", Body: "success"}
}
