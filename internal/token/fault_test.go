package token

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/redisdb"
	"example.com/oncepay/internal/testenv"
)

// B40, B41: without a working Redis claims are granted and counted; only issuing fails. Nothing has to be restarted
// afterwards.
func TestClaimsAreGrantedWithoutRedis(t *testing.T) {
	server := newServer(t)
	client := testenv.OpenRedis(t, server.URL())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, fault := range []struct {
		name       string
		begin, end func()
	}{
		{"hung", func() { must(server.Pause()) }, func() { must(server.Resume()) }},
		{"full", func() { must(client.ConfigSet(t.Context(), "maxmemory", "1").Err()) },
			func() { must(client.ConfigSet(t.Context(), "maxmemory", "0").Err()) }},
		{"down", func() { must(server.Kill()) }, func() { must(server.Restart(t.Context())) }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			s := newStore(client)
			s.timeout = redisdb.CommandTimeout
			value := issue(t, s)
			fault.begin()
			c, err := claim(t.Context(), s, value, "me")
			if err != nil {
				t.Errorf("claim: %v, want it granted", err)
			}
			if n := hits(t, s, metrics.Degraded); n != 1 {
				t.Errorf("%d degraded, want 1", n)
			}
			c.Release(t.Context())
			_, err = s.Issue(t.Context(), SceneOrderCreate, user)
			if e, ok := apperr.As(err); !ok || e.Kind != apperr.Unavailable || e.Code != "token_store_unavailable" ||
				e.Layer != apperr.LayerToken || e.RetryAfter != time.Second {
				t.Errorf("issue: got %+v, want token_store_unavailable", err)
			}
			fault.end()
			mustClaim(t, s, issue(t, s), "me").Settle(t.Context())
			if n := hits(t, s, metrics.Passed); n != 1 {
				t.Errorf("%d passed after the fault, want 1", n)
			}
		})
	}
}

// B25, B40: a token that was claimed before Redis was full is given back and used up all the same.
func TestClaimsEndInAFullRedis(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	s := newStore(client)
	refused, done := issue(t, s), issue(t, s)
	c1, c2 := mustClaim(t, s, refused, "me"), mustClaim(t, s, done, "me")
	client.ConfigSet(t.Context(), "maxmemory", "1")
	c1.Release(t.Context())
	c2.Settle(t.Context())
	client.ConfigSet(t.Context(), "maxmemory", "0")
	s.Wait = 0
	mustClaim(t, s, refused, "other")
	if _, err := claim(t.Context(), s, done, "other"); !errors.Is(err, ErrSpent) {
		t.Errorf("settled token: got %v, want ErrSpent", err)
	}
	wantHits(t, s, map[string]int{metrics.Passed: 3, metrics.Blocked: 1})
}

// B25: the claim reached Redis, its reply did not reach us. Success uses the token up, and a refusal gives it back.
func TestLostReplyToAClaim(t *testing.T) {
	server := newServer(t)
	proxy, proxied := testenv.BehindRedisProxy(t, server.URL())
	s := newStore(openRedis(t, proxied))
	direct := openRedis(t, server.URL())
	if err := claimScript.Load(t.Context(), direct).Err(); err != nil { // or the fault would hit its loading
		t.Fatal(err)
	}
	proxy.On(testenv.Prefix("EVALSHA "+claimScript.Hash()), 2, testenv.SwallowReply())
	refused, done := issue(t, s), issue(t, s)
	s.Wait = 0
	mustClaim(t, s, refused, "me").Release(t.Context())
	mustClaim(t, s, done, "me").Settle(t.Context())
	mustClaim(t, s, refused, "other")
	if _, err := claim(t.Context(), s, done, "other"); !errors.Is(err, ErrSpent) {
		t.Errorf("settled token: got %v, want ErrSpent", err)
	}
	wantHits(t, s, map[string]int{metrics.Degraded: 2, metrics.Passed: 1, metrics.Blocked: 1})
}

// B25: Redis fails when the claim is to be ended. It is counted, and the lease frees the token.
func TestLostReleaseIsFreedByTheLease(t *testing.T) {
	server := newServer(t)
	proxy, proxied := testenv.BehindRedisProxy(t, server.URL())
	s := newStore(openRedis(t, proxied))
	s.ClaimLease = 200 * time.Millisecond
	value := issue(t, s)
	c := mustClaim(t, s, value, "me")
	proxy.Down()
	c.Release(t.Context())
	proxy.Up()
	if n := hits(t, s, metrics.Degraded); n != 1 {
		t.Errorf("%d degraded, want 1", n)
	}
	mustClaim(t, newStore(openRedis(t, server.URL())), value, "other")
}

// B36: a reply to somebody else's command is never taken for ours.
func TestForeignReplyIsNotAccepted(t *testing.T) {
	client := openRedis(t, newServer(t).URL())
	s := newStore(client)
	value := issue(t, s)
	key := mustKey(t, value)
	var reply []any
	client.AddHook(processHook(func(cmd redis.Cmder, next func() error) error {
		err := next()
		if c, ok := cmd.(*redis.Cmd); ok && err == nil {
			c.SetVal(reply)
		}
		return err
	}))
	for name, foreign := range map[string][]any{
		"another key":   {mustKey(t, "other"), "me", wordClaimed},
		"another owner": {key, "other", wordClaimed},
		"no key":        {wordClaimed},
	} {
		t.Run(name, func(t *testing.T) {
			reply = foreign
			if _, err := s.run(t.Context(), claimScript, key, "me", 1000, 1000); !errors.Is(err, redisdb.ErrForeignReply) {
				t.Errorf("got %v, want redisdb.ErrForeignReply", err)
			}
		})
	}
}

// B36: calls cancelled at random moments on slow connections never confuse each other: never two owners of a token,
// never an answer about another token, and no token is stranded.
func TestRandomCancellations(t *testing.T) {
	server := newServer(t)
	proxy, proxied := testenv.BehindRedisProxy(t, server.URL())
	proxy.On(testenv.Prefix("EVAL"), -1, testenv.Jitter(10*time.Millisecond))
	direct := openRedis(t, server.URL())
	s := newStore(openRedis(t, proxied))
	// A cancelled claim can be overtaken by its own release, on another connection; its lease frees the token then.
	// Far above the milliseconds that a claim is held here.
	s.ClaimLease = 5 * time.Second
	const workers, callsEach, tokens = 40, 60, 8
	var values [tokens]string
	for i := range values {
		values[i] = issue(t, s)
	}
	var inside [tokens]atomic.Int32
	var granted atomic.Int32
	testenv.Together(workers, func(worker int) {
		for call := range callsEach {
			n := rand.N(tokens)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.N(20))*time.Millisecond)
			defer cancel()
			owner := fmt.Sprintf("%d.%d", worker, call)
			c, err := claim(ctx, s, values[n], owner)
			if err != nil {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				continue
			}
			granted.Add(1)
			if holders := inside[n].Add(1); holders > 1 {
				t.Errorf("%d owners of token %d", holders, n)
			}
			key := mustKey(t, values[n])
			got, err := direct.HMGet(t.Context(), key, "key", "owner").Result()
			if err != nil || got[0] != key || got[1] != owner {
				t.Errorf("%s holds %s, Redis says %v, %v", owner, key, got, err)
			}
			inside[n].Add(-1)
			c.Release(ctx)
		}
	})
	if granted.Load() == 0 {
		t.Error("no claim was granted; the test shows nothing")
	}
	free := newStore(direct)
	free.Wait = 0
	for _, value := range values {
		testenv.Eventually(t, patience, "the token is free", func() error {
			_, err := claim(t.Context(), free, value, "last")
			return err
		})
	}
}

// B38: what a script touches is KEYS[1] and nothing else, and its key has a hash tag.
func TestScriptsTouchOneTaggedKey(t *testing.T) {
	seen := 0
	client := openRedis(t, newServer(t).URL())
	client.AddHook(processHook(func(cmd redis.Cmder, next func() error) error {
		args := cmd.Args()
		if name := args[0]; name == "eval" || name == "evalsha" {
			seen++
			key, _ := args[3].(string)
			if args[2] != 1 || strings.Count(key, "{") != 1 || strings.Index(key, "}") != len(key)-1 {
				t.Errorf("%s %v with the keys %v: want one, with one hash tag", name, args[2], key)
			}
			if text, _ := args[1].(string); name == "eval" {
				for _, call := range regexp.MustCompile(`redis\.call\('(\w+)'(, KEYS\[1\])?`).FindAllStringSubmatch(text, -1) {
					if call[1] != "TIME" && call[2] == "" {
						t.Errorf("%s on something else than KEYS[1] in\n%s", call[1], text)
					}
				}
			}
		}
		return next()
	}))
	s := newStore(client)
	mustClaim(t, s, issue(t, s), "me").Settle(t.Context())
	mustClaim(t, s, issue(t, s), "me").Release(t.Context())
	if seen != 10 { // six runs, and EVAL after EVALSHA for each of four unknown scripts
		t.Errorf("%d scripts seen, want 10", seen)
	}
}
