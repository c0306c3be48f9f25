package mockpay

import (
	"crypto/sha256"
	"encoding/base64"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
)

// mounted serves c's channel under /mockpay, as the api does.
func mounted(t *testing.T, c *channel, mount func(chi.Router, http.Handler)) {
	t.Helper()
	r := chi.NewRouter()
	mount(r, http.StripPrefix("/mockpay", c.s))
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	c.url = server.URL + "/mockpay"
}

// press submits the form whose action ends with the suffix, as a browser would, and returns the page it lands on.
func press(t *testing.T, pageURL, suffix string) (landed, page string) {
	t.Helper()
	page, _ = get(t, pageURL)
	for _, m := range regexp.MustCompile(`<form method="post" action="([^"]*)">`).FindAllStringSubmatch(page, -1) {
		action := html.UnescapeString(m[1])
		if path, _, _ := strings.Cut(action, "?"); !strings.HasSuffix(path, suffix) {
			continue
		}
		base, err := url.Parse(pageURL)
		if err != nil {
			t.Fatal(err)
		}
		to, err := base.Parse(action)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.PostForm(to.String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 || resp.Request.Method != "GET" {
			t.Fatalf("%s: %d %s %v", to, resp.StatusCode, body, err)
		}
		return resp.Request.URL.String(), string(body)
	}
	t.Fatalf("no form ends with %s:\n%s", suffix, page)
	return "", ""
}

func TestAPersonPaysOnThePage(t *testing.T) {
	for name, mount := range map[string]func(chi.Router, http.Handler){
		"by handle": func(r chi.Router, h http.Handler) { r.Handle("/mockpay/*", h) },
		"by mount":  func(r chi.Router, h http.Handler) { r.Mount("/mockpay", h) },
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			mounted(t, c, mount)
			trade := want[Trade](c, 200, "POST", "/v1/trades", tradeBody("p1:x~1", ""))
			if trade.PayURL != c.url+"/pay/p1:x~1" {
				t.Errorf("pay_url %s", trade.PayURL)
			}
			shop := "http://shop.example/orders?no=1&x=a%26b"
			pageURL := trade.PayURL + "?return_url=" + url.QueryEscape(shop)
			page, _ := get(t, pageURL)
			for _, text := range []string{merchant, "1.00 CNY", "waiting for you", `href="` + html.EscapeString(shop) + `"`} {
				if !strings.Contains(page, text) {
					t.Errorf("the page does not show %s:\n%s", text, page)
				}
			}
			landed, page := press(t, pageURL, "/pay")
			if landed != pageURL || !strings.Contains(page, "Paid.") || strings.Contains(page, "<form") || !strings.Contains(page, "Back to the shop") {
				t.Errorf("%s shows\n%s", landed, page)
			}
			c.wantKinds("charge pay")

			want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r1:y", "p1:x~1", "30", ""))
			if landed, page = press(t, pageURL, "/succeed"); landed != pageURL || !strings.Contains(page, "Refund of 0.30 CNY") || !strings.Contains(page, "returned.") {
				t.Errorf("%s shows\n%s", landed, page)
			}
			if landed, page = press(t, trade.PayURL, "/fail"); landed != trade.PayURL || !strings.Contains(page, "The money is with the shop.") {
				t.Errorf("%s shows\n%s", landed, page)
			}
			c.wantKinds("charge pay refund refund_succeeded refund_failed")
		})
	}
}

func TestThePageSaysHowItEnded(t *testing.T) {
	c := start(t, func(cfg *Config) { cfg.PublicURL = "https://pay.example/mockpay/" })
	trade := want[Trade](c, 200, "POST", "/v1/trades", tradeBody("p-1", ""))
	if trade.PayURL != "https://pay.example/mockpay/pay/p-1" {
		t.Errorf("pay_url %s", trade.PayURL)
	}
	if _, page := press(t, c.url+"/pay/p-1", "/fail"); !strings.Contains(page, "The payment failed.") || strings.Contains(page, "<form") {
		t.Error(page)
	}
	want[Trade](c, 200, "POST", "/v1/trades", tradeBody("p-2", ""))
	want[Trade](c, 200, "POST", "/v1/trades/p-2/close", "")
	if page, _ := get(t, c.url+"/pay/p-2"); !strings.Contains(page, "The shop closed this payment.") || strings.Contains(page, "<form") {
		t.Error(page)
	}
	// A button that was pressed too late brings back the page, which tells.
	resp, err := http.PostForm(c.url+"/pay/p-2/pay", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || !strings.Contains(string(body), "The shop closed this payment.") {
		t.Errorf("%d %s %v", resp.StatusCode, body, err)
	}
	c.refused(404, "trade_not_found", "GET", "/pay/p-3", "")
	c.refused(404, "trade_not_found", "POST", "/pay/p-3/pay", "")
	c.refused(404, "refund_not_found", "POST", "/pay/p-1/refunds/r-1/fail", "")
	c.wantKinds("charge fail charge close")
}

func TestThePageLoadsNothingAndRunsNothing(t *testing.T) {
	c := start(t)
	want[Trade](c, 200, "POST", "/v1/trades", tradeBody("p-1", ""))
	page, header := get(t, c.url+"/pay/p-1?return_url="+url.QueryEscape(`javascript:alert(1)`))
	if strings.Contains(page, "alert") || strings.Contains(page, "<script") || strings.Contains(page, "src=") || strings.Contains(page, "<link") || strings.Contains(page, "http") {
		t.Errorf("the page refers to something else:\n%s", page)
	}
	if !strings.Contains(page, `name="viewport"`) {
		t.Error("the page is not for phones")
	}
	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(page)
	if style == nil {
		t.Fatal("no style")
	}
	sum := sha256.Sum256([]byte(style[1]))
	csp := header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"} {
		if !strings.Contains(csp, part) {
			t.Errorf("Content-Security-Policy %q has no %s", csp, part)
		}
	}
	if header.Get("X-Frame-Options") != "DENY" || header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(header.Get("Content-Type"), "text/html") {
		t.Errorf("%v", header)
	}
	page, _ = get(t, c.url+"/pay/p-1?return_url="+url.QueryEscape(`http://x/"><script>alert(1)</script>`))
	if strings.Contains(page, "<script") {
		t.Errorf("not escaped:\n%s", page)
	}
}
