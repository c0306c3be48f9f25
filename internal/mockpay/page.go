package mockpay

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed" // page.html and page.css
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"

	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/web"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

func parsePage() (*template.Template, error) {
	t, err := template.New("page").Funcs(template.FuncMap{"amount": money.Format}).Parse(pageHTML)
	if err != nil {
		return nil, fmt.Errorf("mockpay: page: %w", err)
	}
	return t, nil
}

// view is what the page shows. Its links are relative, because the server does not know under which prefix it stands.
type view struct {
	Trade     Trade
	Refunds   []Refund
	ReturnURL string       // the shop's page, or empty
	Style     template.CSS // our own file
}

// getPage answers GET /pay/{out_trade_no}.
func (s *Server) getPage(w http.ResponseWriter, r *http.Request) {
	body, err := s.renderPage(r)
	if err != nil {
		web.Write(w, s.refused(r, err))
		return
	}
	// Nothing but the page's own style and its own forms: no script, no frame, nothing from elsewhere.
	sum := sha256.Sum256([]byte(pageCSS))
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	web.Write(w, web.Answer{Status: http.StatusOK, ContentType: "text/html; charset=utf-8", Body: body})
}

func (s *Server) renderPage(r *http.Request) ([]byte, error) {
	no, err := pathNumber(r, "out_trade_no")
	if err != nil {
		return nil, err
	}
	v := view{ReturnURL: returnURL(r), Style: template.CSS(pageCSS)}
	if v.Trade, v.Refunds, err = s.look(no); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := s.page.Execute(&b, v); err != nil {
		return nil, fmt.Errorf("render page: %w", err)
	}
	return b.Bytes(), nil
}

// look reads a trade and its refunds, in the order of their numbers.
func (s *Server) look(outTradeNo string) (Trade, []Refund, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.tradeOf(outTradeNo)
	if err != nil {
		return Trade{}, nil, err
	}
	var refunds []Refund
	for _, f := range s.refunds {
		if f.OutTradeNo == outTradeNo {
			refunds = append(refunds, f.Refund)
		}
	}
	slices.SortFunc(refunds, func(a, b Refund) int { return cmp.Compare(a.OutRefundNo, b.OutRefundNo) })
	return t.Trade, refunds, nil
}

// returnURL is the shop's page to go back to; anything but http and https is no page.
func returnURL(r *http.Request) string {
	s := r.URL.Query().Get("return_url")
	if !absolute(s) {
		return ""
	}
	return s
}

// pressTrade answers the page's buttons Pay and Fail.
func (s *Server) pressTrade(kind string) http.HandlerFunc {
	return s.press("../", "out_trade_no", kind, func(no string) error {
		_, err := s.decide(no, kind, true)
		return err
	})
}

// pressRefund answers the page's buttons of a refund.
func (s *Server) pressRefund(kind string) http.HandlerFunc {
	return s.press("../../../", "out_refund_no", kind, func(no string) error {
		_, err := s.finish(no, kind, true)
		return err
	})
}

// press does what a button says and sends the browser back to the page, which then shows what is: also when somebody else
// decided first (409), so that a button pressed too late needs no page of its own. up leads to the folder /pay/.
func (s *Server) press(up, field, kind string, do func(no string) error) http.HandlerFunc {
	return s.handle(func(r *http.Request) (web.Answer, error) {
		page, err := pathNumber(r, "out_trade_no")
		if err != nil {
			return web.Answer{}, err
		}
		no, err := pathNumber(r, field)
		if err != nil {
			return web.Answer{}, err
		}
		_, _, err = s.run(kind, no, func() (any, error) { return nil, do(no) })
		if refused, ok := errors.AsType[*refusal](err); err != nil && (!ok || refused.Status != http.StatusConflict) {
			return web.Answer{}, err
		}
		back := url.URL{Path: up + page}
		if shop := returnURL(r); shop != "" {
			back.RawQuery = url.Values{"return_url": {shop}}.Encode()
		}
		return web.Answer{Status: http.StatusSeeOther, ContentType: "text/plain; charset=utf-8", Location: back.String()}, nil
	})
}
