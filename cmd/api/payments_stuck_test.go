package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/oncepay/internal/testenv"
)

// nth makes a rule for the n-th command that matches, from now on.
func nth(p *testenv.Proxy, m testenv.Match, n int, a testenv.Action) *testenv.Rule {
	p.On(m, n-1, testenv.Action{})
	return p.On(m, 1, a)
}

// text returns a string from the database.
func (s *stack) text(query string, args ...any) string {
	s.t.Helper()
	var v string
	if err := s.db.QueryRow(query, args...).Scan(&v); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	return v
}

// B16, B90: an instance dies at every step of a payment. Before the lease ends its key says "in progress" if anything was left
// behind; after it the same request has its one result, one attempt and one trade.
func TestADeadInstanceStrandsNoPayment(t *testing.T) {
	begin, commit := testenv.Prefix("START TRANSACTION"), testenv.Prefix("COMMIT")
	for _, b := range []struct {
		name   string
		match  testenv.Match
		n      int
		action func(*testenv.Gate) testenv.Action
		left   string // what its twin gets at once: "nothing", "claim" or "result"
	}{
		{"before-claim", begin, 1, testenv.Hold, "nothing"},
		{"before-claim-commits", commit, 1, testenv.Hold, "nothing"},
		{"after-claim", commit, 1, testenv.HoldReply, "claim"},
		{"after-channel-call-before-commit", begin, 2, testenv.Hold, "claim"},
		{"before-commit", commit, 2, testenv.Hold, "claim"},
		{"after-commit-before-reply", commit, 2, testenv.HoldReply, "result"},
	} {
		t.Run(b.name, func(t *testing.T) {
			s := newStack(t, shortLocks()...)
			s.sku(1, 1999, 10)
			c := payCall(0, 1001, s.order(1001, 1), "mockpay", key("K1"))
			i := s.instances[0]
			gate := testenv.NewGate(t)
			nth(i.mysql, b.match, b.n, b.action(gate))
			abandoned := s.background(c)
			gate.WaitEntered(t, 1)
			i.die()
			wantUndecided(t, <-abandoned)
			switch b.left {
			case "claim":
				r := s.do(on(1, c))
				wantProblem(t, r, http.StatusConflict, "idempotency_in_progress")
				if r.header.Get("Retry-After") == "" {
					t.Errorf("%v does not say when to ask again", r)
				}
				s.advance(i.svc.cfg.KeyLease)
			case "result":
				if r := s.do(on(1, c)); r.status != http.StatusCreated || r.replayed != "true" {
					t.Errorf("at once: %v; want a replay, as it is committed", r)
				}
			}
			first := s.finally(t, on(1, c))
			i.revive()
			wantReplay(t, s.do(c), first)
			s.settle(first.field("pay_no"))
			s.wantEffects("charge", "", 1)
			if n := s.count("SELECT COUNT(*) FROM t_payment"); n != 1 {
				t.Errorf("%d attempts, want 1", n)
			}
			s.wantSound()
		})
	}
}

// stuckProcess starts a process, lets it pay an order and stops it with the channel's answer in hand: what it does next waits
// at the gate.
func stuckProcess(t *testing.T, s *stack, dsn string, orderNo string) (call, *exec.Cmd, *testenv.Gate, <-chan reply) {
	t.Helper()
	// Short, so that the test need not wait for what a dead process held.
	number, process := s.startProcess(dsn, "MOCKPAY_URL="+s.channel.url, "LOCK_TTL=500ms", "LOCK_WAIT=200ms", "IDEMPOTENCY_LEASE=1s")
	gate := testenv.NewGate(t)
	s.idle()
	nth(s.instances[number].mysql, testenv.Prefix("START TRANSACTION"), 2, testenv.Hold(gate))
	c := payCall(number, 1001, orderNo, "mockpay", key("K-%s", orderNo))
	answer := s.background(c)
	gate.WaitEntered(t, 1)
	return c, process, gate, answer
}

// idle waits until the jobs of a process have done what there is for them, so that the next transaction is a request's.
func (s *stack) idle() {
	s.t.Helper()
	s.exec("UPDATE t_outbox SET next_look_at = NULL WHERE topic = 'order.created'") // nobody wants them
	testenv.Eventually(s.t, setupWait, "the jobs have nothing to do", func() error {
		unsent, days := s.count("SELECT COUNT(*) FROM t_outbox WHERE sent_at IS NULL"), s.count("SELECT COUNT(*) FROM t_reconciliation WHERE status = 1")
		if unsent > 0 || days == 0 || s.count("SELECT COUNT(*) FROM t_reconciliation WHERE status = 0") > 0 {
			return fmt.Errorf("%d messages unsent, %d days compared", unsent, days)
		}
		return nil
	})
}

// B17: a process is frozen with the channel's answer in hand, another takes its key over, then it wakes up. It changes no row
// and answers what the other one stored.
func TestAFrozenProcessWakesUpAfterTheTakeover(t *testing.T) {
	dsn := testenv.Database(t)
	s := newStackOn(t, dsn, testenv.RedisURL(t), shortLocks()...)
	s.sku(1, 1999, 10)
	orderNo := s.order(1001, 1)
	c, process, gate, answer := stuckProcess(t, s, dsn, orderNo)
	if err := process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	gate.Open()
	s.advance(time.Second) // the lease ends
	taken := s.finally(t, on(1, c))
	if taken.status != http.StatusCreated || taken.replayed != "false" {
		t.Errorf("the one that took over: %v; want the first run", taken)
	}
	const rows = `SELECT CONCAT_WS('|', p.pay_no, p.status, p.trade_no, p.polls, p.next_poll_at, p.update_time, k.owner, k.state, k.body)
		FROM t_payment p JOIN t_idempotency_key k ON k.idem_key = ?`
	before := s.text(rows, c.key)
	if err := process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	wantReplay(t, <-answer, taken)
	if after := s.text(rows, c.key); after != before {
		t.Errorf("the one that was presumed dead has written: %s, before %s", after, before)
	}
	s.wantEffects("charge", "", 1)
	s.settle(taken.field("pay_no"))
	s.wantStatus(1001, orderNo, "PAID")
	s.wantSound()
}

// B12, B90: the channel takes the charge and drops the connection, the process is killed before it has noted anything. The
// client that asks again, the poller, and the notice all find the one trade under the one number.
func TestAKilledProcessLosesNoCharge(t *testing.T) {
	dsn := testenv.Database(t)
	s := newStackOn(t, dsn, testenv.RedisURL(t), shortLocks()...)
	s.sku(1, 1999, 10)
	for name, goOn := range map[string]func(c call, payNo string){
		"the client asks again": func(c call, payNo string) {
			s.advance(time.Second) // the lease ends
			if r := s.finally(t, on(1, c)); r.status != http.StatusCreated || r.field("pay_no") != payNo {
				t.Errorf("%v; want attempt %s", r, payNo)
			}
		},
		"the buyer pays again under a new key": func(c call, payNo string) {
			c.key = key("K2-%s", payNo)
			if r := s.finally(t, on(1, c)); r.status != http.StatusCreated || r.field("pay_no") != payNo {
				t.Errorf("%v; want attempt %s", r, payNo)
			}
		},
		"the poller finds it": func(_ call, payNo string) {
			s.advance(time.Minute)
			s.round(0, "payments.poll")
			s.wantPayment(1001, payNo, "PENDING")
		},
		"the notice comes": func(call, string) {},
	} {
		s.faults(`{"charge":{"drop_after":true,"times":1}}`)
		orderNo := s.order(1001, 1)
		c, process, _, answer := stuckProcess(t, s, dsn, orderNo)
		if err := process.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if r := <-answer; r.err == nil {
			t.Errorf("%s: a dead process answered %v", name, r)
		}
		payNo := s.text("SELECT pay_no FROM t_payment WHERE order_no = ?", orderNo)
		goOn(c, payNo)
		s.settle(payNo)
		s.wantStatus(1001, orderNo, "PAID")
		s.wantEffects("charge", payNo, 1)
		if n := s.count("SELECT COUNT(*) FROM t_payment WHERE order_no = ?", orderNo); n != 1 {
			t.Errorf("%s: %d attempts, want 1", name, n)
		}
		if t.Failed() {
			t.Fatalf("when %s", name)
		}
	}
	s.advance(time.Minute) // leases of those that were not asked for again
	if _, err := s.db.Exec("DELETE FROM t_idempotency_key WHERE state = 0 AND lease_until <= ?", s.instances[0].clock.now()); err != nil {
		t.Fatal(err)
	}
	s.wantSound()
}

// B07, B19: each single command of a payment or a refund is lost, or carried out without its reply. Effect and record stand or
// fall together, and the same request once more has its one result.
func TestAnyLostCommandOfMoneyIsMendedByARepeat(t *testing.T) {
	s := newStack(t, shortLocks()...)
	s.sku(1, 1999, 100000)
	n := 0
	actions := map[string]func() call{
		"pay":    func() call { return payCall(0, 1001, s.order(1001, 1), "mockpay", key("pay-%d", n)) },
		"refund": func() call { orderNo, _ := s.paid(1001); return refundCall(0, 1001, orderNo, 10, key("refund-%d", n)) },
	}
	mysql := s.instances[0].mysql
	for name, action := range actions {
		for _, command := range s.commandsOf(mysql, action) {
			for fault, act := range map[string]testenv.Action{"lost": testenv.CutBefore(), "no reply to": testenv.SwallowReply()} {
				n++
				c := action()
				rule := mysql.On(testenv.Prefix(command), 1, act)
				first := s.do(c)
				rule.Stop()
				if rule.Hits() != 1 {
					t.Errorf("%s: the rule for %q met %d commands", name, command, rule.Hits())
				}
				if first.status >= http.StatusMultipleChoices {
					wantUndecided(t, first)
				}
				again := s.finally(t, on(1, c))
				if first.status < http.StatusMultipleChoices {
					wantReplay(t, again, first)
				}
				wantReplay(t, s.do(c), again)
				if t.Failed() {
					t.Fatalf("%s, %s %q", name, fault, command)
				}
			}
		}
	}
	for table, operation := range map[string]string{"t_payment": "payment.create", "t_refund": "refund.create"} {
		if rows, keys := s.count("SELECT COUNT(*) FROM "+table), s.count("SELECT COUNT(*) FROM t_idempotency_key WHERE operation = ?", operation); rows != keys {
			t.Errorf("%d rows in %s for %d keys", rows, table, keys)
		}
	}
	s.wantEffects("charge", "", s.count("SELECT COUNT(*) FROM t_payment"))
	s.wantSound()
}

// impatient is a front of the channel that closes a kept-alive connection on the first byte of its second request.
type impatient struct {
	url  string
	mu   sync.Mutex
	used map[net.Conn]bool
	cut  int
	to   *url.URL
}

func newImpatient(t *testing.T) *impatient {
	f := &impatient{used: make(map[net.Conn]bool)}
	server := httptest.NewUnstartedServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		f.mu.Lock()
		defer f.mu.Unlock()
		r.SetURL(f.to)
	}})
	server.Config.ConnState = func(c net.Conn, state http.ConnState) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if state != http.StateActive { // which begins with a request's first byte
			return
		}
		if f.used[c] {
			f.cut++
			c.Close()
		}
		f.used[c] = true
	}
	server.Start()
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

// B62: a connection that breaks on a call's first byte. Calls may arrive twice; charge, refund and close have one effect each,
// under one number.
func TestAConnectionCutOnTheFirstByte(t *testing.T) {
	front := newImpatient(t)
	s := newStack(t, "MOCKPAY_URL="+front.url)
	var err error
	if front.to, err = url.Parse(s.channel.url); err != nil {
		t.Fatal(err)
	}
	s.sku(1, 1999, 10)
	paid, _ := s.paid(1001) // leaves a kept-alive connection behind
	paySecond := payCall(0, 1001, s.order(1001, 1), "mockpay", key("K1"))
	first := s.do(paySecond)
	wantReplay(t, s.do(on(1, paySecond)), first)
	payNo := first.field("pay_no")
	orderNo := first.field("order_no")
	refundNo := s.must(http.StatusAccepted, refundCall(0, 1001, paid, 10, key("K2"))).field("refund_no")
	for range 4 {
		s.round(0, "refunds.send")
		s.advance(10 * time.Second)
		s.round(0, "payments.poll")
	}
	if s.effects("charge", payNo) == 0 { // it never came; the channel said so, and the attempt ended
		s.wantPayment(1001, payNo, "FAILED")
		payNo = s.must(http.StatusCreated, payCall(1, 1001, orderNo, "mockpay", key("K3"))).field("pay_no")
	}
	s.wantEffects("charge", "", 2)
	s.wantEffects("refund", refundNo, 1)
	s.advance(time.Hour)
	for range 3 {
		s.round(0, "orders.close")
		s.advance(time.Minute)
	}
	s.wantStatus(1001, orderNo, "CANCELLED")
	s.wantEffects("close", payNo, 1)
	if front.cut == 0 {
		t.Error("no connection was cut: this test could not fail")
	}
	s.wantSound()
}
