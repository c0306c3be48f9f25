package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"example.com/oncepay/internal/testenv"
)

// B24: one form, two hundred submits, each under a key of its own; with all guards and without any.
func TestOneTokenMakesOneOrder(t *testing.T) {
	for name, env := range map[string][]string{"all guards": nil, "no guards": {"DISABLE_GUARDS=token,lock,idempotency_key"}} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t, env...)
			s.sku(1, 1999, 1000)
			token := s.token(1001)
			replies := s.all(200, func(i int) call { return create(i, 1001, 1, key("K%d", i), token) })
			for _, r := range replies {
				if r.status != http.StatusCreated && r.status != http.StatusConflict {
					t.Errorf("got %v; want the order or a 409", r)
				}
			}
			if orders := distinct(replies, "order_no"); len(orders) != 1 {
				t.Errorf("orders named in the answers: %v (%v); want one", orders, tally(replies))
			}
			s.wantRows(1)
			s.wantSound()
		})
	}
}

// B25: after a failure the user can repair, the same token works again, for one order however often it is sent.
func TestATokenSurvivesAFailureTheUserCanRepair(t *testing.T) {
	failures := map[string]func(t *testing.T, s *stack, c call){
		"no stock": func(t *testing.T, s *stack, c call) {
			s.must(http.StatusCreated, moveStock(1, -1000, ""))
			wantProblem(t, s.do(c), http.StatusConflict, "out_of_stock")
			s.must(http.StatusCreated, moveStock(1, 1000, ""))
		},
		"bad coupon": func(t *testing.T, s *stack, c call) {
			c.body = `{"sku_id":1,"quantity":1,"coupon_no":"not-mine"}`
			wantProblem(t, s.do(c), http.StatusNotFound, "coupon_not_found")
		},
		"unknown goods": func(t *testing.T, s *stack, c call) {
			c.body = `{"sku_id":99,"quantity":1}`
			wantProblem(t, s.do(c), http.StatusNotFound, "sku_not_found")
		},
		"client gone": func(t *testing.T, s *stack, c call) {
			gate := testenv.NewGate(t)
			s.instances[0].mysql.On(testenv.Contains("INSERT INTO t_outbox"), 1, testenv.Hold(gate))
			var leave context.CancelFunc
			c.ctx, leave = context.WithCancel(t.Context())
			gone := s.background(c)
			gate.WaitEntered(t, 1)
			leave()
			if r := <-gone; r.err == nil {
				t.Errorf("the client was to be gone before any answer, and got %v", r)
			}
			gate.Open()
		},
		"kill": func(t *testing.T, s *stack, c call) {
			s.dieAt(t, barriers()[2], c)
			s.instances[0].revive()
			other := create(1, 1001, 1, key("too-early"), c.token)
			if r := s.do(other); r.field("code") != "token_in_use" || r.header.Get("Retry-After") == "" {
				t.Errorf("while the dead request's claim lasts: %v; want 409 token_in_use with Retry-After", r)
			}
			s.endClaim(t, c.token)
		},
	}
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			s := newStack(t, shortLocks()...)
			s.sku(1, 1999, 1000)
			token := s.token(1001)
			fail(t, s, create(0, 1001, 1, key("K1"), token))
			s.finally(t, create(1, 1001, 1, key("K2"), token))
			replies := s.all(20, func(i int) call { return create(i, 1001, 1, key("K2"), token) })
			for _, r := range replies {
				wantReplay(t, r, replies[0])
			}
			s.wantRows(1)
			s.wantSound()
		})
	}
}

// endClaim lets the lease of a token's claim end, by moving its deadline, which is measured by Redis's own clock.
func (s *stack) endClaim(t *testing.T, token string) {
	t.Helper()
	client := testenv.OpenRedis(t, s.redisURL)
	name := "oncepay:token:{order.create:1001:" + token + "}"
	if changed, err := client.HSet(t.Context(), name, "deadline", 1).Result(); err != nil || changed != 0 {
		t.Fatalf("there was no claim to end: %d, %v", changed, err)
	}
}

// B25: a deadlock is not the user's trouble at all: the transaction runs again, under the same key and token.
func TestADeadlockIsRunAgain(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	c := create(0, 1001, 1, key("K1"), s.token(1001))
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	exec := func(query string, args ...any) error {
		_, err := tx.ExecContext(t.Context(), query, args...)
		return err
	}
	// A hundred rows make this side the one that is dear to undo, so that InnoDB picks the other as the victim.
	for i := range 100 {
		err := exec(`INSERT INTO t_activity (activity_id, title, starts_at, ends_at, create_time, update_time) VALUES (?, '', NOW(), NOW(), NOW(), NOW())`, fmt.Sprint("filler-", i))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := exec("UPDATE t_sku SET title = 'locked' WHERE sku_id = 1"); err != nil {
		t.Fatal(err)
	}
	gate := testenv.NewGate(t)
	s.instances[0].mysql.On(testenv.Contains("UPDATE t_sku"), 1, testenv.Hold(gate))
	done := s.background(c)
	gate.WaitEntered(t, 1)
	crossed := make(chan error, 1)
	go func() { // waits for the key's row, which the request has; the request then asks for the SKU, which we have
		crossed <- exec(`INSERT INTO t_idempotency_key (caller_id, idem_key, operation, fingerprint, state, owner, lease_until, create_time, expires_at)
			VALUES (1001, ?, '', '', 0, '', NOW(), NOW(), NOW())`, c.key)
	}()
	gate.Open()
	if err := <-crossed; err != nil {
		t.Fatalf("the wrong side was the victim: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	first := <-done
	if first.status != http.StatusCreated {
		t.Errorf("got %v; want the order", first)
	}
	if r := s.do(call{path: "/metrics"}); !strings.Contains(string(r.body), `tx_retries_total{cause="deadlock"} 1`) {
		t.Error("no deadlock was counted")
	}
	wantReplay(t, s.do(on(1, c)), first)
	s.wantRows(1)
	s.wantSound()
}

// A spent or unknown token: first the request's own result, only then a refusal that tells the user what to do.
func TestASpentTokenGivesTheResultOrARefusal(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	s.activity("sale")
	token := s.token(1001)
	orderNo := s.must(http.StatusCreated, create(0, 1001, 1, key("K1"), token)).field("order_no")
	if n := s.hits("token", "order.create", "blocked"); n != 0 {
		t.Fatalf("the guard stopped %d requests before there was anything to stop", n)
	}
	wantOrder(t, s.do(create(1, 1001, 1, key("K2"), token)), orderNo)
	if n := s.hits("token", "order.create", "blocked"); n != 1 {
		t.Errorf("the guard stopped %d requests with a spent token, want 1", n)
	}
	unknown := s.do(create(1, 1001, 1, key("K3"), "never-issued"))
	wantProblem(t, unknown, http.StatusConflict, "token_spent")
	if !strings.Contains(unknown.field("detail"), "请刷新后重试") || unknown.field("layer") != "token" {
		t.Errorf("%v does not tell the user to refresh and try again", unknown)
	}
	wantProblem(t, s.do(create(1, 1002, 1, key("K1"), token)), http.StatusConflict, "token_spent") // another user's
	different := create(1, 1001, 1, key("K4"), token)
	different.body = `{"sku_id":1,"quantity":2}`
	wantProblem(t, s.do(different), http.StatusConflict, "order_differs")
	wantReplay(t, s.do(on(0, different)), s.do(different)) // the business has looked: that answer is final for its key
	// A spent token's refusal is not stored: the key still works.
	for _, k := range []string{"K3", "K5"} {
		if r := s.do(create(0, 1001, 1, key("%s", k), s.token(1001))); r.status != http.StatusCreated || r.replayed != "false" {
			t.Errorf("%s with a fresh token: %v", k, r)
		}
	}
	s.wantRows(3)
	s.wantSound()
}

// TOKEN_REQUIRED=true: no order without a token.
func TestATokenCanBeMandatory(t *testing.T) {
	s := newStack(t, "TOKEN_REQUIRED=true")
	s.sku(1, 1999, 1000)
	wantProblem(t, s.do(create(0, 1001, 1, key("K1"), "")), http.StatusBadRequest, "submit_token_required")
	if r := s.do(create(0, 1001, 1, key("K1"), s.token(1001))); r.status != http.StatusCreated || r.replayed != "false" {
		t.Errorf("the same key with a token: %v", r)
	}
	s.wantRows(1)
	s.wantSound()
}

// One user may hold many tokens at once, one for each tab.
func TestManyTokensOfOneUserWorkSideBySide(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	var tokens []string
	for range 10 {
		tokens = append(tokens, s.token(1001))
	}
	replies := s.all(10, func(i int) call { return create(i, 1001, 1, key("K%d", i), tokens[i]) })
	if orders := distinct(replies, "order_no"); len(orders) != len(tokens) {
		t.Errorf("%d orders from %d forms: %v", len(orders), len(tokens), tally(replies))
	}
	s.wantRows(len(tokens))
	s.wantSound()
}
