package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/testenv"
)

// screenshots is where the tests of the pages leave pictures for a person to look at.
var screenshots = flag.String("screenshots", "", "a folder for pictures of the pages")

// pageWait bounds one step in the browser, on a loaded machine.
const pageWait = 30 * time.Second

// browser opens a page in a headless Chromium of its own. No page here may need anything from elsewhere.
func browser(t *testing.T) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, // the sandbox cannot be had by root, as whom container builds run; the pages are our own
		chromedp.UserDataDir(t.TempDir()),
		chromedp.WindowSize(1280, 900),
		chromedp.WSURLReadTimeout(pageWait),
	)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, closePage := chromedp.NewContext(ctx)
	t.Cleanup(closePage)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start a Chromium or Chrome (make setup installs one): %v", err)
	}
	return ctx
}

// act does steps in the browser.
func act(t *testing.T, ctx context.Context, what string, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, pageWait)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// press clicks a button and waits until the next page is there.
func press(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.RunResponse(ctx, chromedp.Click(chromedp.CSS(selector)))
		return err
	})
}

// text reads what an element shows.
func text(t *testing.T, ctx context.Context, selector string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, pageWait)
	defer cancel()
	s, err := chromedp.Run(ctx, chromedp.Text(chromedp.CSS(selector)))
	if err != nil {
		t.Fatalf("read %s: %v", selector, err)
	}
	return s
}

func picture(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	if *screenshots == "" {
		return
	}
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// An operator's day: somebody else is kept out; money that nobody expected is decided; a message that was given up is repaired and
// replayed; the channel's day is compared; a notice is applied again; and every deed is on record.
func TestTheDeskInABrowser(t *testing.T) {
	s := newStack(t)
	s.sku(1, 30000, 10)
	orderNo, payNo := s.paid(1001)
	s.poison(orderNo)
	other := s.attempt(1002, s.order(1002, 1), "mockpay")
	wrong := s.noticeOf("payment.succeeded", other)
	wrong.Amount--
	s.notify(0, wrong)
	page, desk := browser(t), s.instances[0].url+"/ops"

	act(t, page, "come without a token", chromedp.Navigate(desk), chromedp.WaitVisible(chromedp.CSS(`input[name=token]`)))
	user := strings.TrimPrefix(s.bearer(buyer(1001)), "Bearer ")
	act(t, page, "come as a user", chromedp.SendKeys(chromedp.CSS(`input[name=token]`), user), press(`button`))
	if got := text(t, page, "body"); !strings.Contains(got, "does not open the desk") {
		t.Errorf("a user's token: %s", got)
	}
	act(t, page, "log in", chromedp.SendKeys(chromedp.CSS(`input[name=token]`), strings.TrimPrefix(s.bearer(operator), "Bearer ")), press(`button`))
	picture(t, page, "desk")
	overview := text(t, page, "body")
	for _, shown := range []string{"amount_mismatch", "dead_letter", "299.99", "points", orderNo, "unique_index", "order.create"} {
		if !strings.Contains(overview, shown) {
			t.Errorf("the overview does not show %q:\n%s", shown, overview)
		}
	}

	const resolve = `form[action$="/resolve"]:has(input[type=checkbox]) `
	act(t, page, "decide", chromedp.SendKeys(chromedp.CSS(resolve+`input[name=resolution]`), "the buyer typed it wrong; 退款 <b>"), chromedp.Click(chromedp.CSS(resolve+`input[type=checkbox]`)), press(resolve+`button`))
	if got := text(t, page, ".banner"); got != "The exception is resolved now." {
		t.Errorf("banner %q", got)
	}
	if n := s.count("SELECT COUNT(*) FROM t_refund WHERE auto = 1"); n != 1 {
		t.Errorf("%d refunds of the held money, want 1", n)
	}

	s.cure(orderNo)
	act(t, page, "replay the message", press(`form[action$="/replay"] button`))
	s.round(0, "messages.retry")
	if got := s.must(http.StatusOK, call{as: buyer(1001), path: "/v1/me/points"}).field("balance"); got != "300" {
		t.Errorf("balance %s, want 300", got)
	}

	act(t, page, "compare a day", chromedp.SendKeys(chromedp.CSS(`input[name=channel]`), "mockpay"),
		chromedp.SetValue(chromedp.CSS(`input[name=date]`), s.instances[0].clock.now().In(time.FixedZone("", 8*3600)).Format(time.DateOnly)), press(`form[action="/ops/reconciliations"] button`))
	act(t, page, "look at the day", press(`#reconciliations ~ .wide a`))
	picture(t, page, "reconciliation")
	if got := text(t, page, "body"); !strings.Contains(got, "DONE") {
		t.Errorf("the reconciliation: %s", got)
	}

	act(t, page, "look at the order", chromedp.SendKeys(chromedp.CSS(`input[name=order_no]`), orderNo), press(`form[action="/ops/orders"] button`))
	picture(t, page, "order")
	if got := text(t, page, "body"); !strings.Contains(got, "PAID") || !strings.Contains(got, payNo) || !strings.Contains(got, "payment.succeeded") {
		t.Errorf("the order: %s", got)
	}
	act(t, page, "apply the notice again", press(`form[action$="/replay"] button`))
	if got := text(t, page, ".banner"); got != "The notice is applied now." {
		t.Errorf("banner %q", got)
	}
	audit := text(t, page, "#audit + .wide")
	for _, deed := range []string{"exception.resolve", "exception.return_money", "dead_letter.replay", "reconciliation.run", "notice.replay", "退款 <b>"} {
		if !strings.Contains(audit, deed) {
			t.Errorf("no record of %s:\n%s", deed, audit)
		}
	}
	act(t, page, "run the invariants", chromedp.Navigate(desk+"/invariants"))
	if got := text(t, page, ".banner"); got != "Every invariant holds." {
		t.Errorf("the invariants: %s", got)
	}
	act(t, page, "log out", press(`form[action="/ops/logout"] button`), chromedp.WaitVisible(chromedp.CSS(`input[name=token]`)))
	s.wantSound()
}

// poison makes an order's order.paid message fail at the points until it is a dead letter; cure mends it.
func (s *stack) poison(orderNo string) {
	s.t.Helper()
	s.exec("UPDATE t_outbox SET payload = CONCAT('!', payload) WHERE topic = 'order.paid' AND partition_key = ?", orderNo)
	for range 40 { // far more than there are tries
		if s.count("SELECT COUNT(*) FROM t_message_dedup WHERE status = 3 AND msg_key = ?", orderNo) == 1 {
			return
		}
		s.advance(30 * time.Minute)
		s.round(0, "messages.rescue")
		s.round(0, "messages.retry")
	}
	s.t.Fatal("the message is never given up")
}

func (s *stack) cure(orderNo string) {
	s.t.Helper()
	s.exec("UPDATE t_outbox SET payload = SUBSTRING(payload, 2) WHERE topic = 'order.paid' AND partition_key = ?", orderNo)
}

func (s *stack) exec(query string, args ...any) {
	s.t.Helper()
	if _, err := s.db.Exec(query, args...); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
}

// visitor is somebody with a browser's cookies but no page: what a form can send, it can.
func (s *stack) visitor(caller *auth.Caller) *http.Client {
	s.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	c := &http.Client{Jar: jar, Timeout: time.Minute}
	if caller != nil {
		token := url.Values{"token": {strings.TrimPrefix(s.bearer(*caller), "Bearer ")}}
		if status, body := form(s.t, c, s.instances[0].url+"/ops/login", token, nil); status != http.StatusOK {
			s.t.Fatalf("log in: %d %s", status, body)
		}
	}
	return c
}

// form sends a form and returns what the page says.
func form(t *testing.T, c *http.Client, address string, values url.Values, header http.Header) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, address, strings.NewReader(values.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range header {
		req.Header[name] = v
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// A form pressed twenty times at once is one deed: its key is in the page.
func TestAButtonPressedTwiceIsOneDeed(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo, _ := s.paid(1001)
	notice := s.count("SELECT id FROM t_channel_notice WHERE order_no = ?", orderNo)
	c := s.visitor(&operator)
	resp, err := c.Get(s.instances[0].url + "/ops/orders?order_no=" + orderNo)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	hidden := regexp.MustCompile(`name="key" value="([^"]+)"`).FindStringSubmatch(string(body))
	if hidden == nil {
		t.Fatalf("no key in the page:\n%s", body)
	}
	testenv.Together(20, func(int) {
		form(t, c, fmt.Sprintf("%s/ops/notices/%d/replay", s.instances[0].url, notice), url.Values{"key": {hidden[1]}}, nil)
	})
	if n := s.count("SELECT COUNT(*) FROM t_audit WHERE action = 'notice.replay'"); n != 1 {
		t.Errorf("%d deeds on record, want 1", n)
	}
	s.wantSound()
}

// What the desk refuses: another site's form with the operator's cookie, a user's token, no token, and ids that are none.
func TestTheDeskLetsNobodyElsePressItsButtons(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo, _ := s.paid(1001)
	notice := s.count("SELECT id FROM t_channel_notice WHERE order_no = ?", orderNo)
	button := fmt.Sprintf("%s/ops/notices/%d/replay", s.instances[0].url, notice)
	key := url.Values{"key": {"a-key-of-some-other-site-1"}}
	ops := s.visitor(&operator)
	if status, _ := form(t, ops, button, key, http.Header{"Origin": {"https://elsewhere.example.com"}, "Sec-Fetch-Site": {"cross-site"}}); status != http.StatusForbidden {
		t.Errorf("another site's form: %d, want 403", status)
	}
	if status, body := form(t, s.visitor(nil), button, key, nil); status != http.StatusUnauthorized || !strings.Contains(body, `name="token"`) {
		t.Errorf("nobody: %d %s; want the way in", status, body)
	}
	if status, body := form(t, s.visitor(nil), s.instances[0].url+"/ops/login", url.Values{"token": {strings.TrimPrefix(s.bearer(buyer(1001)), "Bearer ")}}, nil); status != http.StatusUnauthorized {
		t.Errorf("a user's token: %d %s", status, body)
	}
	for _, path := range []string{"/ops/notices/0/replay", "/ops/notices/..%2F..%2Fexceptions%2F1/replay", "/ops/exceptions/x/resolve", "/ops/dead-letters/999/discard"} {
		if status, body := form(t, ops, s.instances[0].url+path, key, nil); status < 400 || status != http.StatusNotFound && !strings.Contains(body, "Refused:") {
			t.Errorf("%s: %d %s; want a refusal", path, status, body)
		}
	}
	if status, _ := form(t, ops, s.instances[0].url+"/ops/login", url.Values{"token": {strings.Repeat("x", 1<<20)}}, nil); status < 400 {
		t.Errorf("a megabyte of token: %d", status)
	}
	if n := s.count("SELECT COUNT(*) FROM t_audit WHERE action = 'notice.replay'"); n != 0 {
		t.Errorf("%d replays on record, want none", n)
	}
	resp, err := ops.Get(s.instances[0].url + "/ops/style.css")
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(resp.Header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("the style: %v, %v", resp, err)
	}
	resp.Body.Close()
}
