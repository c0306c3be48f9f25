package main

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/testenv"
)

// What the tests of the whole service say most often about a reply.

func wantProblem(t *testing.T, r reply, status int, code string) {
	t.Helper()
	if r.err != nil || r.status != status || r.field("code") != code {
		t.Errorf("got %v; want %d %s", r, status, code)
		return
	}
	if got := r.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("%s has Content-Type %q", code, got)
	}
}

// wantReplay asserts that r is the stored answer of the request that got first.
func wantReplay(t *testing.T, r, first reply) {
	t.Helper()
	if r.err != nil || r.status != first.status || string(r.body) != string(first.body) || r.replayed != "true" {
		t.Errorf("got %v; want the replay of %v", r, first)
	}
}

// wantOrder asserts that r is a 201 with this order.
func wantOrder(t *testing.T, r reply, orderNo string) {
	t.Helper()
	if r.err != nil || r.status != http.StatusCreated || r.field("order_no") != orderNo {
		t.Errorf("got %v; want 201 and order %s", r, orderNo)
	}
}

// wantUndecided asserts that a request which could not be decided said so: retryable, and nothing of our inside shown.
func wantUndecided(t *testing.T, r reply) {
	t.Helper()
	if r.err != nil || r.status != http.StatusServiceUnavailable || r.field("retryable") != "true" || r.header.Get("Retry-After") == "" {
		t.Errorf("got %v; want a retryable 503 with Retry-After", r)
	}
	for _, internal := range []string{"mysql", "t_order", "sql:", "127.0.0.1", "goroutine"} {
		if strings.Contains(string(r.body), internal) {
			t.Errorf("the answer shows %q: %s", internal, r.body)
		}
	}
}

// mendWait is how long a fault may keep a request from its result: much longer than the lock of shortLocks, and much shorter
// than a token's claim lasts by itself (20 s), so that what only the lease sets free counts as stuck.
const mendWait = 10 * time.Second

// finally sends a request until it gets a 2xx, and returns that. On the way it may be told to wait, and nothing else.
func (s *stack) finally(t *testing.T, c call) reply {
	t.Helper()
	var r reply
	testenv.Eventually(t, mendWait, c.path+" goes through", func() error {
		r = s.do(c)
		switch {
		case r.err == nil && r.status < http.StatusMultipleChoices:
			return nil
		case r.header.Get("Retry-After") == "":
			t.Fatalf("got %v; want a result, or to be told when to ask again", r)
		}
		return fmt.Errorf("last answer: %v", r)
	})
	return r
}

// background sends a request and hands its reply over when it is there.
func (s *stack) background(c call) <-chan reply {
	done := make(chan reply, 1)
	go func() { done <- s.do(c) }()
	return done
}

// die cuts an instance off from everything, as if its machine were gone: what it was doing can have no more effect.
func (i *instance) die() {
	i.mysql.Down()
	i.redis.Down()
}

// revive brings it back.
func (i *instance) revive() {
	i.mysql.Up()
	i.redis.Up()
}

// inActivity makes a purchase one of an activity.
func inActivity(c call, id string) call {
	c.body = strings.TrimSuffix(c.body, "}") + fmt.Sprintf(`,"activity_id":%q}`, id)
	return c
}

// on sends the same request to another instance.
func on(instance int, c call) call {
	c.on = instance
	return c
}

// moveStock describes an operator's delivery.
func moveStock(sku, delta int64, key string) call {
	return call{as: operator, path: fmt.Sprintf("/v1/ops/skus/%d/stock-movements", sku), key: key,
		body: fmt.Sprintf(`{"delta":%d,"reason":"delivery"}`, delta)}
}

// step describes a move of an order: cancel, ship or finish.
func (s *stack) step(as int64, orderNo, verb, key string) call {
	c := call{as: buyer(as), method: http.MethodPost, path: "/v1/orders/" + orderNo + "/" + verb, key: key}
	if verb == "ship" {
		c.as = operator
	}
	return c
}

// order makes an order without ado and returns its number.
func (s *stack) order(user, sku int64) string {
	s.t.Helper()
	return s.must(http.StatusCreated, create(0, user, sku, key("%s", rand.Text()), "")).field("order_no")
}

// lookUp asks for the record of a key.
func (s *stack) lookUp(user int64, key string) reply {
	return s.do(call{as: buyer(user), path: "/v1/idempotency-keys/" + key})
}
