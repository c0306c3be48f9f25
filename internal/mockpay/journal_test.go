package mockpay

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestTheJournalOutlivesTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	keep := func(cfg *Config) { cfg.Journal = path }
	hook, parcels := merchantServer(t, acknowledge)
	first := start(t, keep)
	first.paid("p-1", hook)
	within(t, parcels, "no notice")
	want[Trade](first, 200, "POST", "/v1/trades", tradeBody("p-2", ""))
	want[Refund](first, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "30", hook))
	want[Refund](first, 200, "POST", "/v1/refunds", refundBody("r-2", "p-1", "30", ""))
	want[Refund](first, 200, "POST", "/v1/refunds/r-2/succeed", "")
	before := first.effects().Data
	trade := want[Trade](first, 200, "GET", "/v1/trades/p-1", "")
	first.close()
	if status, body := first.send("POST", "/v1/trades/p-2/pay", ""); status != 500 || strings.Contains(string(body), path) {
		t.Errorf("an effect that cannot be kept: %d %s", status, body)
	}

	// A process that died while writing leaves half a line behind, here longer than any that follows.
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(whole, `{"effect":{"seq":7,"kind":"`+strings.Repeat("x", 9999)...), 0o600); err != nil {
		t.Fatal(err)
	}
	second := start(t, keep)
	if after := second.effects().Data; !reflect.DeepEqual(after, before) {
		t.Errorf("%+v\n%+v", before, after)
	}
	got := want[Trade](second, 200, "GET", "/v1/trades/p-1", "")
	trade.PayURL, got.PayURL = "", ""
	if !reflect.DeepEqual(got, trade) {
		t.Errorf("%+v\n%+v", trade, got)
	}
	second.refused(409, "refund_exceeds_paid", "POST", "/v1/refunds", refundBody("r-3", "p-1", "41", ""))
	want[Refund](second, 200, "POST", "/v1/refunds/r-1/succeed", "")
	if n := within(t, parcels, "the notify_url is forgotten"); n.OutRefundNo != "r-1" {
		t.Errorf("%+v", n.Notice)
	}
	second.close()

	third := start(t, keep)
	third.wantKinds("charge pay charge refund refund refund_succeeded refund_succeeded")
	for i, e := range third.effects().Data {
		if e.Seq != i+1 {
			t.Errorf("%+v at place %d", e, i)
		}
	}
}

// Refunds that were waiting to succeed by themselves do so after a restart.
func TestRefundsInProgressGoOnAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	first := start(t, func(cfg *Config) { cfg.Journal = path })
	first.paid("p-1", "")
	want[Refund](first, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "30", ""))
	first.close()
	second := start(t, func(cfg *Config) { cfg.Journal, cfg.AutoRefund = path, true })
	second.idle()
	second.wantKinds("charge pay refund refund_succeeded")
}

func TestADamagedJournalIsNotPassedOver(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	if err := os.WriteFile(path, []byte("{\"effect\":\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{path, dir} {
		if _, err := New(Config{Merchants: map[string][]string{merchant: {"a"}}, Journal: bad}); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
