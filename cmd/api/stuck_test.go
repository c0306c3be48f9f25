package main

import (
	"fmt"
	"net/http"
	"testing"

	"example.com/oncepay/internal/testenv"
)

// barrier is a point of a create at which its instance can die.
type barrier struct {
	name   string
	redis  bool // the command goes to Redis, not to MySQL
	match  testenv.Match
	action func(*testenv.Gate) testenv.Action
	done   bool // the effect is committed by then
}

// barriers of case B16. after-token is the same point as after-lock: the token is claimed before the lock is asked for.
func barriers() []barrier {
	return []barrier{
		{"after-claim", true, testenv.Contains("oncepay:lock:"), testenv.Hold, false},
		{"after-lock", false, testenv.Prefix("START TRANSACTION"), testenv.Hold, false},
		{"before-commit", false, testenv.Prefix("COMMIT"), testenv.Hold, false},
		{"after-commit-before-reply", false, testenv.Prefix("COMMIT"), testenv.HoldReply, true},
	}
}

// dieAt sends c to instance 0 and lets the instance die at b. What the abandoned client sees is not the point here, only
// that it is no false result.
func (s *stack) dieAt(t *testing.T, b barrier, c call) {
	t.Helper()
	i := s.instances[0]
	gate := testenv.NewGate(t)
	proxy := i.mysql
	if b.redis {
		proxy = i.redis
	}
	rule := proxy.On(b.match, 1, b.action(gate))
	defer rule.Stop()
	abandoned := s.background(on(0, c))
	gate.WaitEntered(t, 1)
	i.die()
	wantUndecided(t, <-abandoned)
}

// shortLocks makes a dead instance's lock end while a test waits: a repeat is told to wait for up to a second.
func shortLocks() []string { return []string{"LOCK_TTL=1s", "LOCK_WAIT=200ms"} }

// B16: whoever dies wherever, the same request sent again ends with one order, and nobody is stuck.
func TestADeadInstanceStrandsNoCreate(t *testing.T) {
	for _, b := range barriers() {
		t.Run(b.name, func(t *testing.T) {
			s := newStack(t, shortLocks()...)
			s.sku(1, 1999, 1000)
			calls := []call{
				create(0, 1001, 1, key("plain"), ""),
				create(0, 1001, 1, key("form"), s.token(1001)),
				inActivity(create(0, 1001, 1, key("sale"), ""), "sale"),
			}
			s.activity("sale")
			for _, c := range calls {
				s.dieAt(t, b, c)
				if b.done {
					if r := s.do(on(1, c)); r.status != http.StatusCreated || r.replayed != "true" {
						t.Errorf("at once: %v; want a replay, as it is committed", r)
					}
				}
				first := s.finally(t, on(1, c))
				s.instances[0].revive()
				wantReplay(t, s.do(on(0, c)), first)
			}
			s.wantRows(len(calls))
			s.wantSound()
		})
	}
}

// B16: likewise for the other effects that take a key.
func TestADeadInstanceStrandsNoOtherEffect(t *testing.T) {
	for _, b := range barriers() {
		if b.redis {
			continue // these take no lock
		}
		t.Run(b.name, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 0, 1000) // its orders are PAID
			s.sku(2, 1999, 1000)
			calls := []call{
				moveStock(1, 7, key("delivery")),
				s.step(1001, s.order(1001, 2), "cancel", key("cancel")),
				s.step(1001, s.order(1001, 1), "ship", key("ship")),
				s.step(1001, s.order(1001, 1), "finish", key("finish")),
			}
			for _, c := range calls {
				s.dieAt(t, b, c)
				r := s.do(on(1, c))
				if r.status >= http.StatusMultipleChoices || r.replayed != fmt.Sprint(b.done) {
					t.Errorf("%s: %v; want a result, replayed: %v", c.path, r, b.done)
				}
				s.instances[0].revive()
				wantReplay(t, s.do(on(0, c)), r)
			}
			if n := s.count("SELECT initial FROM t_sku WHERE sku_id = 1"); n != 1007 {
				t.Errorf("stock put on the shelf: %d, want 1007", n)
			}
			s.wantSound()
		})
	}
}

// B07, B19, B25: each single command of an action is lost, or carried out without its reply. The effect, the key's record
// and the token stand or fall together, and the same request once more has its one result.
func TestAnyLostCommandIsMendedByARepeat(t *testing.T) {
	s := newStack(t, shortLocks()...)
	s.sku(1, 1999, 100000)
	s.couponSale("sale", 10, 100000)
	s.earn(1001, 10000)
	n, user := 0, int64(2000)
	actions := map[string]func() call{
		"create": func() call { return create(0, 1001, 1, key("create-%d", n), s.token(1001)) },
		"stock":  func() call { return moveStock(1, 1, key("stock-%d", n)) },
		"cancel": func() call { return s.step(1001, s.order(1001, 1), "cancel", key("cancel-%d", n)) },
		"claim":  func() call { user++; return claim(0, user, "sale", key("claim-%d", n)) },
		"redeem": func() call { return redeem(0, 1001, "sale", key("redeem-%d", n)) },
		"code":   func() call { return makeCode(0, "sale", key("code-%d", n)) },
		"create with a coupon": func() call {
			user++
			return withCoupon(create(0, user, 1, key("coupon-%d", n), ""), s.coupon(user, "sale"))
		},
	}
	for name, action := range actions {
		for _, proxy := range []*testenv.Proxy{s.instances[0].mysql, s.instances[0].redis} {
			for _, command := range s.commandsOf(proxy, action) {
				for fault, act := range map[string]testenv.Action{"lost": testenv.CutBefore(), "no reply to": testenv.SwallowReply()} {
					n++
					c := action()
					rule := proxy.On(testenv.Prefix(command), 1, act)
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
	}
	if n < 120 {
		t.Errorf("only %d faults were tried; a create alone has some ten commands", n)
	}
	for table, operation := range map[string]string{"t_coupon WHERE activity_id <> ''": "coupon.claim", "t_point_entry WHERE kind = 'redeem'": "points.redeem", "t_coupon_code": "coupon_code.create"} {
		if made, keys := s.count("SELECT COUNT(*) FROM "+table), s.count("SELECT COUNT(*) FROM t_idempotency_key WHERE operation = ?", operation); made != keys || made == 0 {
			t.Errorf("%d of %s for %d keys", made, table, keys)
		}
	}
	if moved := s.count("SELECT COUNT(*) FROM t_stock_movement WHERE kind = 'adjust'"); moved != s.count("SELECT COUNT(*) FROM t_idempotency_key WHERE operation = 'stock.move'") {
		t.Errorf("%d deliveries; want one for each key", moved)
	}
	s.wantRows(s.count("SELECT COUNT(*) FROM t_idempotency_key WHERE operation = 'order.create'"))
	s.wantSound()
}

// commandsOf lists the different commands that an action of instance 0 sends through a proxy, cut before their values.
func (s *stack) commandsOf(proxy *testenv.Proxy, action func() call) []string {
	s.t.Helper()
	// Enough to tell two statements apart, and to name a script: EVALSHA, a space and 40 hexadecimal digits.
	const length = 48
	var commands []string
	seen := make(map[string]bool)
	for range 2 { // the first run warms up: connections, scripts
		c := action()
		c.key += "-warm-up-" + fmt.Sprint(len(proxy.Log()))
		proxy.ClearLog()
		if r := s.do(c); r.status >= http.StatusMultipleChoices {
			s.t.Fatalf("without a fault: %v", r)
		}
	}
	for _, e := range proxy.Log() {
		if command := e.Cmd[:min(length, len(e.Cmd))]; !seen[command] {
			seen[command] = true
			commands = append(commands, command)
		}
	}
	return commands
}

// B17: a record in progress belongs to its run until the lease ends. One without a lease cannot be.
func TestARecordInProgressIsNotRunOver(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	c := create(0, 1001, 1, key("K1"), "")
	s.must(http.StatusCreated, c)
	// As a run leaves it that commits its claim before its effect, and dies.
	const insert = `
		INSERT INTO t_idempotency_key (caller_id, idem_key, operation, fingerprint, state, owner, lease_until, create_time, expires_at)
		SELECT 1001, ?, operation, fingerprint, 0, owner, ?, create_time, expires_at FROM t_idempotency_key WHERE idem_key = ?`
	if _, err := s.db.Exec(insert, key("K2"), nil, key("K1")); err == nil {
		t.Error("a record without a lease can be stored")
	}
	i := s.instances[0]
	if _, err := s.db.Exec(insert, key("K2"), i.clock.now().Add(i.svc.cfg.KeyLease), key("K1")); err != nil {
		t.Fatal(err)
	}
	c.key = key("K2")
	for on := range s.instances {
		c.on = on
		r := s.do(c)
		wantProblem(t, r, http.StatusConflict, "idempotency_in_progress")
		if r.header.Get("Retry-After") == "" || r.field("retryable") != "true" {
			t.Errorf("%v does not say when to ask again", r)
		}
	}
	if r := s.lookUp(1001, key("K2")); r.field("state") != "in_progress" {
		t.Errorf("the look-up says %v", r)
	}
	s.wantRows(1)
	for _, i := range s.instances {
		i.clock.advance(i.svc.cfg.KeyLease)
	}
	replies := s.all(10, func(i int) call { return on(i, c) })
	for _, r := range replies {
		wantOrder(t, r, replies[0].field("order_no"))
	}
	s.wantRows(2)
	s.wantSound()
}
