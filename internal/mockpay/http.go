package mockpay

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"example.com/oncepay/internal/web"
)

// handle adapts a handler that returns an answer or an error.
func (s *Server) handle(h web.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := h(r)
		if err != nil {
			answer = s.refused(r, err)
		}
		web.Write(w, answer)
	}
}

// refused renders an error, and logs it if it is ours.
func (s *Server) refused(r *http.Request, err error) web.Answer {
	answer := problem(err)
	if answer.Status == http.StatusInternalServerError {
		s.cfg.Log.Error("call failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	return answer
}

// call runs one call of a client: it counts the arrival, does what do says under mu, and spoils the answer if a fault is
// set for this kind of call.
func (s *Server) call(r *http.Request, kind, number string, do func() (any, error)) (web.Answer, error) {
	v, fault, err := s.run(kind, number, do)
	if fault.DelayMS > 0 && !s.pause(r.Context(), milliseconds(fault.DelayMS)) {
		// Nobody waits any more, or may not: an answer that comes too early would not be the fault that was asked for.
		panic(http.ErrAbortHandler)
	}
	if fault.DropAfter {
		panic(http.ErrAbortHandler) // net/http cuts the connection
	}
	if status := fault.Status + fault.StatusAfter; status != 0 { // one of them is 0
		return web.Answer{}, refuse(status, "fault", "This answer was asked for with PUT /v1/faults.")
	}
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, v)
}

func (s *Server) run(kind, number string, do func() (any, error)) (any, CallFault, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[call{kind, number}]++
	fault := s.faults.of(kind).take()
	if fault.Status != 0 {
		return nil, fault, nil
	}
	v, err := do()
	return v, fault, err
}

// postTrade answers POST /v1/trades. A new trade is 200, too: a merchant must not depend on being the first.
func (s *Server) postTrade(r *http.Request) (web.Answer, error) {
	var q ChargeRequest
	if _, err := web.DecodeJSON(r, &q); err != nil {
		return web.Answer{}, err
	}
	if err := q.check(); err != nil {
		return web.Answer{}, err
	}
	return s.call(r, kindCharge, q.OutTradeNo, func() (any, error) { return s.shown(r)(s.charge(q)) })
}

func (s *Server) getTrade(r *http.Request) (web.Answer, error) {
	no, err := pathNumber(r, "out_trade_no")
	if err != nil {
		return web.Answer{}, err
	}
	return s.call(r, kindQuery, no, func() (any, error) {
		t, err := s.tradeOf(no)
		return s.shown(r)(t.Trade, err)
	})
}

// decideTrade answers POST /v1/trades/{out_trade_no}/pay, fail and close.
func (s *Server) decideTrade(kind string) web.Handler {
	return func(r *http.Request) (web.Answer, error) {
		no, err := pathNumber(r, "out_trade_no")
		if err != nil {
			return web.Answer{}, err
		}
		notify, err := decision(r)
		if err != nil {
			return web.Answer{}, err
		}
		return s.call(r, kind, no, func() (any, error) { return s.shown(r)(s.decide(no, kind, notify)) })
	}
}

// shown completes a trade with its pay_url.
func (s *Server) shown(r *http.Request) func(Trade, error) (any, error) {
	return func(t Trade, err error) (any, error) {
		t.PayURL = s.base(r) + "/pay/" + t.OutTradeNo
		return t, err
	}
}

func (s *Server) postRefund(r *http.Request) (web.Answer, error) {
	var q RefundRequest
	if _, err := web.DecodeJSON(r, &q); err != nil {
		return web.Answer{}, err
	}
	if err := q.check(); err != nil {
		return web.Answer{}, err
	}
	return s.call(r, kindRefund, q.OutRefundNo, func() (any, error) { return s.accept(q) })
}

func (s *Server) getRefund(r *http.Request) (web.Answer, error) {
	no, err := pathNumber(r, "out_refund_no")
	if err != nil {
		return web.Answer{}, err
	}
	return s.call(r, kindRefundQuery, no, func() (any, error) {
		f, err := s.refundOf(no)
		return f.Refund, err
	})
}

// decideRefund answers POST /v1/refunds/{out_refund_no}/succeed and fail.
func (s *Server) decideRefund(kind string) web.Handler {
	return func(r *http.Request) (web.Answer, error) {
		no, err := pathNumber(r, "out_refund_no")
		if err != nil {
			return web.Answer{}, err
		}
		notify, err := decision(r)
		if err != nil {
			return web.Answer{}, err
		}
		return s.call(r, kind, no, func() (any, error) { return s.finish(no, kind, notify) })
	}
}

// decision reads what a decision may say: no body, and ?notify=off.
func decision(r *http.Request) (notify bool, err error) {
	if _, err := web.NoBody(r); err != nil {
		return false, err
	}
	switch q := r.URL.Query(); {
	case !q.Has("notify"):
		return true, nil
	case q.Get("notify") == "off":
		return false, nil
	default:
		return false, refuse(http.StatusBadRequest, "field_invalid", "notify can only be off.")
	}
}

// putSecrets answers PUT /v1/secrets. The secrets themselves are neither shown nor logged.
func (s *Server) putSecrets(r *http.Request) (web.Answer, error) {
	var q struct {
		MerchantID string   `json:"merchant_id"`
		Secrets    []string `json:"secrets"`
	}
	if _, err := web.DecodeJSON(r, &q); err != nil {
		return web.Answer{}, err
	}
	if err := checkSecrets(q.Secrets); err != nil {
		return web.Answer{}, refuse(http.StatusBadRequest, "field_invalid", "secrets: %v.", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.secrets[q.MerchantID]; !known {
		return web.Answer{}, errMerchant
	}
	s.secrets[q.MerchantID] = q.Secrets
	s.cfg.Log.Info("secrets changed", "merchant_id", q.MerchantID, "count", len(q.Secrets))
	return web.JSON(http.StatusOK, struct {
		MerchantID string `json:"merchant_id"`
		Count      int    `json:"count"`
	}{q.MerchantID, len(q.Secrets)})
}

func checkSecrets(secrets []string) error {
	if len(secrets) == 0 || slices.Contains(secrets, "") {
		return errors.New("at least one is needed, and none is empty")
	}
	return nil
}

// base is what pay_url begins with: configured, or the address under which this request came in, prefix included.
func (s *Server) base(r *http.Request) string {
	if s.cfg.PublicURL != "" {
		return strings.TrimRight(s.cfg.PublicURL, "/")
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	// http.StripPrefix shortens the URL and leaves RequestURI.
	path, _, _ := strings.Cut(r.RequestURI, "?")
	prefix, ok := strings.CutSuffix(path, r.URL.EscapedPath())
	if !ok || !strings.HasPrefix(prefix, "/") {
		prefix = ""
	}
	return scheme + "://" + r.Host + prefix
}

// maxNumber is the length of out_trade_no that real channels take, too (Alipay: 64).
const maxNumber = 64

// checkNumber accepts a letter or digit followed by letters, digits and _ . : ~ -; such a number can stand in a path and
// cannot be "..".
func checkNumber(field, s string) error {
	ok := s != "" && len(s) <= maxNumber
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || i > 0 && strings.IndexByte("_.:~-", c) >= 0
	}
	if !ok {
		return refuse(http.StatusBadRequest, "field_invalid", "%s is 1 to %d letters, digits, _ . : ~ or -, beginning with a letter or digit.", field, maxNumber)
	}
	return nil
}

func pathNumber(r *http.Request, name string) (string, error) {
	no, err := url.PathUnescape(chi.URLParam(r, name)) // chi takes it from the raw path if there is one
	if err != nil {
		no = ""
	}
	return no, checkNumber(name, no)
}

// checkNotifyURL accepts an absolute URL, or none: then no notice is sent.
func checkNotifyURL(s string) error {
	if s != "" && !absolute(s) {
		return refuse(http.StatusBadRequest, "field_invalid", "notify_url is an absolute http or https URL.")
	}
	return nil
}

func absolute(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}
