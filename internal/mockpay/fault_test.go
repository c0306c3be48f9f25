package mockpay

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// step is a call that can be spoiled, with what must have happened before and the effect it has.
type step struct {
	fault                string
	prepare              func(c *channel)
	method, path, effect string
	body                 string
}

func steps() []step {
	open := func(c *channel) { want[Trade](c, 200, "POST", "/v1/trades", tradeBody("p-1", "")) }
	pay := func(c *channel) { c.paid("p-1", "") }
	refund := func(c *channel) {
		pay(c)
		want[Refund](c, 200, "POST", "/v1/refunds", refundBody("r-1", "p-1", "30", ""))
	}
	return []step{
		{"charge", func(*channel) {}, "POST", "/v1/trades", kindCharge, tradeBody("p-1", "")},
		{"query", pay, "GET", "/v1/trades/p-1", "", ""},
		{"close", open, "POST", "/v1/trades/p-1/close", kindClose, ""},
		{"refund", pay, "POST", "/v1/refunds", kindRefund, refundBody("r-1", "p-1", "30", "")},
		{"refund_query", refund, "GET", "/v1/refunds/r-1", "", ""},
	}
}

// outcome is what a fault makes of a call: whether its effect happens, and the status of the answer (0: there is none).
type outcome struct {
	happens bool
	status  int
}

func TestEveryCallCanBeSpoiled(t *testing.T) {
	for _, step := range steps() {
		for fault, spoiled := range map[string]outcome{
			`"status":503`:                     {false, 503},
			`"status":403`:                     {false, 403},
			`"status":599,"delay_ms":20`:       {false, 599},
			`"status_after":502`:               {true, 502},
			`"status_after":500,"delay_ms":20`: {true, 500},
			`"drop_after":true`:                {true, 0},
			`"drop_after":true,"delay_ms":20`:  {true, 0},
			`"delay_ms":20`:                    {true, 200},
		} {
			t.Run(step.fault+" "+fault, func(t *testing.T) { spoil(t, step, fault, spoiled) })
		}
	}
}

func spoil(t *testing.T, step step, fault string, want outcome) {
	c := start(t)
	step.prepare(c)
	before := c.kinds()
	if status, body := c.send("PUT", "/v1/faults", `{"`+step.fault+`":{`+fault+`,"times":1}}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	began := time.Now()
	status, body, err := c.try(t.Context(), step.method, step.path, step.body)
	if took := time.Since(began); strings.Contains(fault, "delay_ms") && took < 20*time.Millisecond {
		t.Errorf("the answer came after %v", took)
	}
	if (err != nil) != (want.status == 0) || status != want.status {
		t.Errorf("%d %s, %v; want %d", status, body, err, want.status)
	}
	after := strings.TrimSpace(strings.TrimPrefix(c.kinds(), before))
	if want.happens && after != step.effect || !want.happens && after != "" {
		t.Errorf("effect %q; want it to happen: %v", after, want.happens)
	}
	// The fault was for one call: the next one is served, and has the effect that is still missing.
	if status, body := c.send(step.method, step.path, step.body); status != 200 {
		t.Errorf("the next call: %d %s", status, body)
	}
	c.wantKinds(strings.TrimSpace(before + " " + step.effect))
}

func TestAFaultWithoutTimesStaysUntilItIsCleared(t *testing.T) {
	c := start(t)
	want[Faults](c, 200, "PUT", "/v1/faults", `{"charge":{"status":500},"query":{"status":500,"times":2}}`)
	for range 3 {
		c.refused(500, "fault", "POST", "/v1/trades", tradeBody("p-1", ""))
	}
	c.refused(500, "fault", "GET", "/v1/trades/p-1", "")
	if f := want[Faults](c, 200, "GET", "/v1/faults", ""); f.Query.Times != 1 || f.Charge.Status != 500 {
		t.Errorf("what is left: %+v", f)
	}
	want[Faults](c, 200, "PUT", "/v1/faults", `{}`) // replaces all of it
	want[Trade](c, 200, "POST", "/v1/trades", tradeBody("p-1", ""))
	want[Faults](c, 200, "PUT", "/v1/faults", `{"query":{"status":500}}`)
	want[Faults](c, 200, "DELETE", "/v1/faults", "")
	want[Trade](c, 200, "GET", "/v1/trades/p-1", "")
	c.wantKinds("charge")
	for _, a := range c.effects().Arrivals {
		if a.Kind == kindCharge && (a.Arrived != 4 || a.TookEffect != 1) {
			t.Errorf("%+v; want a refused call counted as arrived", a)
		}
	}
}

// The effect of a late answer is not late: whoever asks meanwhile sees it.
func TestALateAnswersEffectIsThereAtOnce(t *testing.T) {
	c := start(t)
	want[Faults](c, 200, "PUT", "/v1/faults", `{"charge":{"delay_ms":600000}}`)
	ctx, giveUp := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, _, err := c.try(ctx, "POST", "/v1/trades", tradeBody("p-1", ""))
		failed <- err
	}()
	c.eventually("charge")
	want[Trade](c, 200, "GET", "/v1/trades/p-1", "")
	giveUp()
	if err := within(t, failed, "the call does not end"); err == nil {
		t.Error("an answer came early")
	}
}

func TestCloseCutsOffLateAnswers(t *testing.T) {
	c := start(t)
	want[Faults](c, 200, "PUT", "/v1/faults", `{"charge":{"delay_ms":600000}}`)
	failed := make(chan error, 1)
	go func() {
		_, _, err := c.try(t.Context(), "POST", "/v1/trades", tradeBody("p-1", ""))
		failed <- err
	}()
	c.eventually("charge")
	c.close()
	if err := within(t, failed, "the call does not end"); err == nil {
		t.Error("an answer came early")
	}
}

// eventually asks until the effects are these.
func (c *channel) eventually(kinds string) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); c.kinds() != kinds; {
		if time.Now().After(deadline) {
			c.t.Fatalf("effects %q, want %q", c.kinds(), kinds)
		}
	}
}

func TestBadFaultsAreRefusedAsAWhole(t *testing.T) {
	c := start(t)
	for body, code := range map[string]string{
		`{"charge":{"status":200}}`:                         "fault_invalid",
		`{"charge":{"status":600}}`:                         "fault_invalid",
		`{"query":{"status_after":404}}`:                    "fault_invalid",
		`{"close":{"status":500,"drop_after":true}}`:        "fault_invalid",
		`{"refund":{"status_after":500,"drop_after":true}}`: "fault_invalid",
		`{"refund_query":{"delay_ms":-1}}`:                  "fault_invalid",
		`{"refund_query":{"delay_ms":600001}}`:              "fault_invalid",
		`{"charge":{"status":500},"query":{"times":-1}}`:    "fault_invalid",
		`{"notices":{"repeat":-1}}`:                         "fault_invalid",
		`{"notices":{"repeat":1001}}`:                       "fault_invalid",
		`{"notices":{"delay_ms":600001}}`:                   "fault_invalid",
		`{"bill":{"status":399}}`:                           "fault_invalid",
		`{"bill":{"status":600}}`:                           "fault_invalid",
		`{"bill":{"times":-1}}`:                             "fault_invalid",
		`{"bill":{"drop":true}}`:                            "body_invalid",
		`{"refund_mode":"later"}`:                           "fault_invalid",
		`{"auto_refund_ms":-1}`:                             "fault_invalid",
		`{"pay":{}}`:                                        "body_invalid",
		`{"charge":{"delay":1}}`:                            "body_invalid",
		`{"notices":{"lose":1}}`:                            "body_invalid",
		`{"charge":{"status":500}}{}`:                       "body_invalid",
		`{"charge":{"status":500},"charge":{"status":501}}`: "body_invalid",
		`null`: "body_invalid",
	} {
		c.refused(400, code, "PUT", "/v1/faults", body)
	}
	none := Faults{RefundMode: RefundManual, AutoRefundMS: autoRefundMS}
	if got := want[Faults](c, 200, "GET", "/v1/faults", ""); got != none {
		t.Errorf("%+v", got)
	}
}

// The names are what tests outside this package send.
func TestTheNamesOfTheFaults(t *testing.T) {
	c := start(t)
	call := `{"delay_ms":1,"drop_after":false,"status":0,"status_after":500,"times":2}`
	body := `{"charge":` + call + `,"query":` + call + `,"close":` + call + `,"refund":` + call + `,"refund_query":` + call +
		`,"notices":{"repeat":3,"delay_ms":4,"reorder":true,"lose":true,"times":5},` +
		`"bill":{"status":503,"wrong_sha":true,"repeat":"T1","drop":"T2","alter":"r-1","times":7},"refund_mode":"auto","auto_refund_ms":6}`
	_, got := c.send("PUT", "/v1/faults", body)
	if !json.Valid(got) || strings.TrimSpace(string(got)) != body {
		t.Errorf("got  %s\nwant %s", got, body)
	}
}
