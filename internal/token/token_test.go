package token

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/testenv"
)

func TestIssuedTokenHasItsFormAndItsLife(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	s := newStore(client)
	token, err := s.Issue(t.Context(), SceneOrderCreate, user)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$`).MatchString(token.Value) {
		t.Errorf("value %q is no UUIDv4 without dashes", token.Value)
	}
	if token.Scene != SceneOrderCreate || !token.ExpiresAt.Equal(now.Add(testTTL)) {
		t.Errorf("got %+v", token)
	}
	if ttl := client.PTTL(t.Context(), mustKey(t, token.Value)).Val(); ttl <= testTTL-time.Minute || ttl > testTTL {
		t.Errorf("the token lives for %v, want %v", ttl, testTTL)
	}
	if _, err := s.Issue(t.Context(), "order.pay", user); !apperr.Is(err, "scene_unknown") {
		t.Errorf("unknown scene: got %v", err)
	}
}

// B24: of 200 parallel claims one at a time is granted, and once it is settled no other.
func TestOneOfManyClaimsUsesTheToken(t *testing.T) {
	s := newStore(openRedis(t, newServer(t).URL()))
	value := issue(t, s)
	var granted, spent atomic.Int32
	testenv.Together(200, func(i int) {
		c, err := claim(t.Context(), s, value, fmt.Sprint("owner", i))
		switch {
		case err == nil:
			granted.Add(1)
			c.Settle(t.Context())
		case errors.Is(err, ErrSpent):
			spent.Add(1)
		default:
			t.Error(err)
		}
	})
	if granted.Load() != 1 || spent.Load() != 199 {
		t.Errorf("%d granted, %d spent, want 1 and 199", granted.Load(), spent.Load())
	}
	wantHits(t, s, map[string]int{metrics.Passed: 1, metrics.Blocked: 199})
}

// B25: a refusal gives the token to the next, one at a time.
func TestReleasedTokenGoesToTheNext(t *testing.T) {
	s := newStore(openRedis(t, newServer(t).URL()))
	value := issue(t, s)
	var inside, granted atomic.Int32
	const n = 50
	testenv.Together(n, func(i int) {
		c, err := claim(t.Context(), s, value, fmt.Sprint("owner", i))
		if err != nil {
			t.Error(err)
			return
		}
		if holders := inside.Add(1); holders != 1 {
			t.Errorf("%d hold the token", holders)
		}
		granted.Add(1)
		runtime.Gosched()
		inside.Add(-1)
		c.Release(t.Context())
	})
	if granted.Load() != n {
		t.Errorf("%d granted, want %d", granted.Load(), n)
	}
	if passed, waited := hits(t, s, metrics.Passed), hits(t, s, metrics.Waited); passed < 1 || waited < 1 || passed+waited != n {
		t.Errorf("passed %d, waited %d, want %d together and some of each", passed, waited, n)
	}
	mustClaim(t, s, value, "last").Settle(t.Context())
	if _, err := claim(t.Context(), s, value, "late"); !errors.Is(err, ErrSpent) {
		t.Errorf("after success: got %v, want ErrSpent", err)
	}
}

// B25: a crashed request's claim ends with its lease.
func TestCrashDoesNotStrandTheToken(t *testing.T) {
	s := newStore(openRedis(t, newServer(t).URL()))
	s.ClaimLease = 200 * time.Millisecond
	value := issue(t, s)
	start, lease := time.Now(), s.ClaimLease
	crashed := mustClaim(t, s, value, "crashed")
	s.ClaimLease = time.Minute
	next := mustClaim(t, s, value, "next")
	if took := time.Since(start); took < lease-time.Millisecond { // Redis's clock is cut to milliseconds
		t.Errorf("granted after %v, while the first claim was alive", took)
	}
	// What the first one does when it comes back to life changes nothing.
	crashed.Release(t.Context())
	crashed.Settle(t.Context())
	s.Wait = 0
	if _, err := claim(t.Context(), s, value, "third"); !apperr.Is(err, "token_in_use") {
		t.Errorf("third: got %v, want token_in_use", err)
	}
	next.Settle(t.Context())
	if _, err := claim(t.Context(), s, value, "third"); !errors.Is(err, ErrSpent) {
		t.Errorf("third after success: got %v, want ErrSpent", err)
	}
}

func TestSameOwnerIsRecognised(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	s := newStore(client)
	s.Wait = 0
	value := issue(t, s)
	mustClaim(t, s, value, "me")
	key := mustKey(t, value)
	before := client.HGet(t.Context(), key, "deadline").Val()
	testenv.Eventually(t, patience, "the repeat moves the deadline", func() error {
		mustClaim(t, newStore(client), value, "me") // through another instance
		if after := client.HGet(t.Context(), key, "deadline").Val(); after <= before {
			return fmt.Errorf("deadline %s, was %s", after, before)
		}
		return nil
	})
	if _, err := claim(t.Context(), s, value, "Me"); !apperr.Is(err, "token_in_use") {
		t.Errorf("an owner that differs in case: got %v, want token_in_use", err)
	}
}

func TestClaimAndReleaseRenewTheTokensLife(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	s := newStore(client)
	value := issue(t, s)
	renewed := func(doing string) {
		t.Helper()
		if ttl := client.PTTL(t.Context(), mustKey(t, value)).Val(); ttl < testTTL-time.Minute {
			t.Errorf("after %s the token lives for %v, want %v", doing, ttl, testTTL)
		}
		client.PExpire(t.Context(), mustKey(t, value), time.Minute) // most of its life goes by
	}
	renewed("issue")
	c := mustClaim(t, s, value, "me")
	renewed("claim")
	c.Release(t.Context())
	renewed("release")
}

func TestTokenInUse(t *testing.T) {
	s := newStore(openRedis(t, newServer(t).URL()))
	value := issue(t, s)
	mustClaim(t, s, value, "first")
	s.Wait = 100 * time.Millisecond
	start := time.Now()
	_, err := claim(t.Context(), s, value, "second")
	if took := time.Since(start); took < s.Wait || took > s.Wait+patience/4 {
		t.Errorf("waited %v, want about %v", took, s.Wait)
	}
	e, ok := apperr.As(err)
	if !ok || e.Kind != apperr.InProgress || e.Code != "token_in_use" || e.Layer != apperr.LayerToken || e.RetryAfter != time.Second {
		t.Errorf("got %+v", err)
	}
	wantHits(t, s, map[string]int{metrics.Passed: 1, metrics.Blocked: 1})
}

func TestUnknownTokenIsSpent(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	s := newStore(client)
	value := issue(t, s)
	_, never := claim(t.Context(), s, "never-issued", "me")
	_, others := s.Claim(t.Context(), SceneOrderCreate, user+1, value, "me")
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	_, flushed := claim(t.Context(), s, value, "me")
	for name, err := range map[string]error{"never issued": never, "another user's": others, "flushed": flushed} {
		if !errors.Is(err, ErrSpent) {
			t.Errorf("%s: got %v, want ErrSpent", name, err)
		}
	}
	wantHits(t, s, map[string]int{metrics.Blocked: 3})
	// B36: a value that does not name its key is no token.
	client.HSet(t.Context(), mustKey(t, value), "key", mustKey(t, "other"))
	if _, err := claim(t.Context(), s, value, "me"); !errors.Is(err, ErrSpent) {
		t.Errorf("foreign value: got %v, want ErrSpent", err)
	}
	client.Del(t.Context(), mustKey(t, value))
}

func TestMalformedTokenIsRefusedAtTheEdge(t *testing.T) {
	s := newStore(openRedis(t, newServer(t).URL()))
	for _, s.Disabled = range []bool{false, true} {
		if _, err := claim(t.Context(), s, "a:b", "me"); !apperr.Is(err, "submit_token_invalid") {
			t.Errorf("disabled %v: got %v, want submit_token_invalid", s.Disabled, err)
		}
	}
	wantHits(t, s, nil)
}

func TestDisabledGuardGrantsEverything(t *testing.T) {
	s := newStore(openRedis(t, newServer(t).URL()))
	s.Disabled = true
	value := issue(t, s)
	for range 2 {
		mustClaim(t, s, value, "me").Settle(t.Context())
		mustClaim(t, s, value, "other").Release(t.Context())
	}
	wantHits(t, s, nil)
}

func TestRequestWithoutATokenHasNothingToEnd(t *testing.T) {
	var c *Claim
	c.Settle(t.Context())
	c.Release(t.Context())
}

// B25: a client that hangs up does not take the token with it.
func TestCancelledClientGivesTheTokenBack(t *testing.T) {
	s := newStore(openRedis(t, newServer(t).URL()))
	value := issue(t, s)
	ctx, hangUp := context.WithCancel(t.Context())
	c, err := claim(ctx, s, value, "first")
	if err != nil {
		t.Fatal(err)
	}
	hangUp()
	if _, err := claim(ctx, s, value, "second"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	c.Release(ctx)
	s.Wait = 0
	mustClaim(t, s, value, "third")
}
