package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestItServesSaysWhereAndStops(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	stdout, w := io.Pipe()
	ended := make(chan error, 1)
	env := map[string]string{"MOCKPAY_ADDR": "127.0.0.1:0"}
	go func() {
		ended <- run(ctx, func(name string) string { return env[name] }, w, io.Discard)
		w.Close()
	}()
	first := make([]byte, 4096)
	n, err := stdout.Read(first)
	if err != nil {
		t.Fatal(err)
	}
	welcome := string(first[:n])
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(welcome)
	if strings.Count(welcome, "curl ") != 2 {
		t.Errorf("%s", welcome)
	}
	for _, merchant := range []string{"m-mockpay", "m-mockpay2"} {
		body := `{"merchant_id":"` + merchant + `","out_trade_no":"` + merchant + `","amount":1,"currency":"CNY"}`
		resp, err := http.Post(url+"/v1/trades", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", merchant, resp.StatusCode)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestABadAddressIsAnError(t *testing.T) {
	env := map[string]string{"MOCKPAY_ADDR": "nowhere"}
	err := run(t.Context(), func(name string) string { return env[name] }, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "MOCKPAY_ADDR") {
		t.Errorf("%v", err)
	}
}
