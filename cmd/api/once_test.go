package main

import (
	"fmt"
	"net/http"
	"testing"

	"example.com/oncepay/internal/testenv"
)

// The first thing anybody tries: the same request a hundred times at once, on two instances.
func TestHundredRepeatsOfOneRequestMakeOneOrder(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	token := s.token(1001)
	replies := s.all(100, func(i int) call { return create(i, 1001, 1, key("once"), token) })
	for _, r := range replies {
		if r.status != http.StatusCreated || string(r.body) != string(replies[0].body) {
			t.Errorf("got %v, want 201 and the bytes of the first answer", r)
		}
	}
	if orders := distinct(replies, "order_no"); len(orders) != 1 {
		t.Errorf("orders named in the answers: %v, want one", orders)
	}
	s.wantRows(1)
	s.wantSound()
}

// One form, submitted fifty times, each time under another key.
func TestOneTokenFiftyTimesMakesOneOrder(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	token := s.token(1001)
	replies := s.all(50, func(i int) call { return create(i, 1001, 1, key("form-%d", i), token) })
	if orders := distinct(replies, "order_no"); len(orders) != 1 {
		t.Errorf("orders named in the answers: %v, want one", orders)
	}
	for _, r := range replies {
		if r.status != http.StatusCreated && r.status != http.StatusConflict {
			t.Errorf("got %v, want that order or a 409", r)
		}
	}
	s.wantRows(1)
	s.wantSound()
}

// B102, B105: ten units, a hundred buyers.
func TestTenUnitsAreSoldTenTimes(t *testing.T) {
	for _, redis := range []outage{redisUp, redisDown} {
		t.Run(string(redis), func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 1999, 10)
			disturb(t, s, redis)
			replies := s.all(100, func(i int) call { return create(i, int64(2000+i), 1, key("buyer-%d", i), "") })
			got := tally(replies)
			if got["201 "] != 10 || got["409 out_of_stock"] != 90 {
				t.Errorf("answers: %v; want 10 orders and 90 out_of_stock", got)
			}
			s.wantRows(10)
			s.wantSound()
		})
	}
}

// B41: Redis dies in the middle of things and comes back; nothing doubles, nothing fails, nothing is restarted.
func TestRedisDyingInBetweenDoublesNothing(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	tokens := make([]string, 20)
	for i := range tokens {
		tokens[i] = s.token(int64(1000 + i))
	}
	gate := testenv.NewGate(t)
	for _, i := range s.instances {
		i.mysql.On(testenv.Prefix("COMMIT"), 1, testenv.Hold(gate))
	}
	go func() {
		defer gate.Open()
		gate.WaitEntered(t, 1) // the others wait for its SKU row
		for _, i := range s.instances {
			i.redis.Down()
		}
	}()
	send := func() []reply {
		return s.all(200, func(i int) call {
			user := i % 20
			return create(i, int64(1000+user), 1, key("user-%d", user), tokens[user])
		})
	}
	first := send()
	// On a slow machine some wait for the held COMMIT's rows longer than InnoDB lets them, and are told to ask again.
	if got := tally(first); got["201 "]+got["409 lock_busy"]+got["409 idempotency_in_progress"]+got["409 token_in_use"]+got["503 unavailable"] != 200 {
		t.Errorf("answers while Redis died: %v", got)
	}
	if r := s.do(call{as: buyer(1001), path: "/v1/tokens", body: `{"scene":"order.create"}`}); r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" {
		t.Errorf("a token without Redis: %v; want 503 with Retry-After", r)
	}
	if got := tally(send()); got["201 "] != 200 {
		t.Errorf("the same requests once more: %v; want 201 for all", got)
	}
	for _, i := range s.instances {
		i.redis.Up()
	}
	testenv.Eventually(t, setupWait, "tokens are issued again", func() error {
		if r := s.do(call{as: buyer(1001), path: "/v1/tokens", body: `{"scene":"order.create"}`}); r.status != http.StatusCreated {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	s.wantRows(20)
	s.wantSound()
}
