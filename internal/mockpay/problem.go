package mockpay

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/web"
)

// refusal is an answer that is not 200. The channel is another company's system: its codes are its own, and no part of the
// service's docs/errors.md.
type refusal struct {
	Type   string  `json:"type"`
	Title  string  `json:"title"`
	Status int     `json:"status"`
	Detail string  `json:"detail"`
	Code   string  `json:"code"`
	Trade  *Trade  `json:"trade,omitzero"`
	Refund *Refund `json:"refund,omitzero"`
}

var errMerchant = refuse(http.StatusNotFound, "merchant_unknown", "There is no such merchant, or the trade is another's.")

func refuse(status int, code, format string, args ...any) *refusal {
	// about:blank: the status says what kind of problem it is (RFC 9457 §4.2.1), the code says which.
	return &refusal{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: fmt.Sprintf(format, args...)}
}

func (e *refusal) Error() string { return e.Code + ": " + e.Detail }

// withTrade and withRefund show what stood in the way.
func (e *refusal) withTrade(t Trade) *refusal   { e.Trade = &t; return e }
func (e *refusal) withRefund(f Refund) *refusal { e.Refund = &f; return e }

// problem renders an error. What is neither a refusal nor the decoder's is a fault of ours and shows nothing of its cause.
func problem(err error) web.Answer {
	refused, ok := errors.AsType[*refusal](err)
	if !ok {
		refused = refuse(http.StatusInternalServerError, "internal", "Something went wrong; nothing has happened.")
		if e, known := apperr.As(err); known {
			refused = refuse(web.Status(e.Kind), e.Code, "%s", e.Detail)
		}
	}
	body, err := json.Marshal(refused)
	if err != nil { // a detail that is no UTF-8
		body = []byte(`{"type":"about:blank","title":"Internal Server Error","status":500,"code":"internal"}`)
		return web.Answer{Status: http.StatusInternalServerError, ContentType: "application/problem+json", Body: body}
	}
	return web.Answer{Status: refused.Status, ContentType: "application/problem+json", Body: append(body, '\n')}
}
