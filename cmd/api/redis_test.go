package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/embedded"
	"example.com/oncepay/internal/testenv"
)

// B36: clients that leave at random while Redis answers late. Nobody is ever given another's token, order or answer.
func TestNoReplyGoesToTheWrongRequest(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 100000)
	for _, i := range s.instances {
		i.redis.On(testenv.Contains("oncepay:"), -1, testenv.Jitter(10*time.Millisecond))
	}
	const users, rounds = 20, 25
	tokens := make([][]string, users)
	testenv.Together(users, func(u int) {
		user := int64(1001 + u)
		for round := range rounds {
			ctx, leave := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(60))*time.Millisecond)
			issued := s.do(call{on: round, as: buyer(user), path: "/v1/tokens", body: `{"scene":"order.create"}`, ctx: ctx})
			leave()
			if issued.err != nil {
				continue
			}
			token := issued.field("token")
			tokens[u] = append(tokens[u], token)
			if r := s.do(create(round, user, 1, key("%d", round), token)); r.err == nil && r.field("user_id") != fmt.Sprint(user) {
				t.Errorf("user %d with their own token: %v", user, r)
			}
		}
	})
	seen := make(map[string]int)
	for u, mine := range tokens {
		for _, token := range mine {
			if seen[token]++; seen[token] > 1 {
				t.Errorf("token %s was given out twice, the second time to user %d", token, 1001+u)
			}
		}
	}
	if len(seen) == 0 || len(seen) == users*rounds {
		t.Errorf("%d of %d tokens arrived; want some to be lost", len(seen), users*rounds)
	}
	s.wantRows(len(seen))
	s.wantSound()
}

// B39: no Redis command of this service adds anything, so none can count twice when it is sent again: each sets, extends or
// removes a value that names its owner. A new command must be put into the list, with that question answered.
func TestNoRedisCommandAdds(t *testing.T) {
	harmless := map[string]string{
		"SET":     "with NX, of a value that names its owner, who recognises it",
		"HSET":    "the same values again",
		"HMGET":   "reads",
		"HGET":    "reads",
		"GET":     "reads",
		"TIME":    "reads",
		"PEXPIRE": "the same life again",
		"DEL":     "gone is gone",
		"HDEL":    "gone is gone",
	}
	used := make(map[string]bool)
	for _, file := range productionFiles(t) {
		for _, m := range regexp.MustCompile(`redis\.p?call\(\s*['"](\w+)`).FindAllStringSubmatch(read(t, file), -1) {
			used[m[1]] = true
			if harmless[m[1]] == "" {
				t.Errorf("%s: a script calls %s, which is not known to be harmless when repeated", file, m[1])
			}
		}
	}
	if len(used) != len(harmless) {
		t.Errorf("scripts use %v; the list has %d", slices.Sorted(maps.Keys(used)), len(harmless))
	}

	// Outside scripts nothing is written: what a client sends by itself is set-up and questions.
	s := newStack(t)
	s.sku(1, 1999, 10)
	first := s.must(http.StatusCreated, create(0, 1001, 1, key("K1"), s.token(1001)))
	s.must(http.StatusOK, s.step(1001, first.field("order_no"), "cancel", ""))
	s.must(http.StatusOK, call{path: "/readyz"})
	s.must(http.StatusOK, call{as: operator, path: "/v1/ops/invariants"})
	plain := []string{"HELLO", "CLIENT", "SELECT", "PING", "CONFIG", "SCAN", "PTTL", "EVAL", "EVALSHA"}
	for _, e := range s.instances[0].redis.Log() {
		if verb, _, _ := strings.Cut(e.Cmd, " "); !slices.Contains(plain, verb) {
			t.Errorf("%s is sent, which is not in the list", e.Cmd)
		}
	}
	s.wantSound()
}

// productionFiles lists the Go files of the module that are not tests.
func productionFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"../../cmd/*/*.go", "../../internal/*/*.go", "../../migrations/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	if len(files) < 20 {
		t.Fatalf("found only %v", files)
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// B40: Redis is full. With a policy that evicts, locks and tokens vanish; with noeviction nothing can be written. Neither
// doubles an order nor shows as a 500, and /readyz speaks of the first.
func TestAFullRedisDoublesNothing(t *testing.T) {
	for policy, health := range map[string]string{"allkeys-lru": "degraded", "noeviction": "ready"} {
		t.Run(policy, func(t *testing.T) {
			server := testenv.PrivateRedis(t)
			s := newStackOn(t, testenv.Database(t), server.URL())
			s.sku(1, 1999, 1000)
			const users = 20
			tokens := make([]string, users)
			for i := range tokens {
				tokens[i] = s.token(int64(1001 + i))
			}
			client := testenv.OpenRedis(t, server.URL())
			limit(t, client, policy)
			if r := s.do(call{path: "/readyz"}); r.status != http.StatusOK || r.field("status") != health || strings.Contains(string(r.body), policy) != (health == "degraded") {
				t.Errorf("/readyz: %v; want %s", r, health)
			}
			fill(t, client)
			replies := s.all(2*users, func(i int) call {
				u := i % users
				return create(i/users, int64(1001+u), 1, key("%d", u), tokens[u])
			})
			for _, r := range replies {
				// An evicted token is an unknown one: its user is told to refresh.
				if r.status != http.StatusCreated && (r.status != http.StatusConflict || r.field("code") != "token_spent" || policy == "noeviction") {
					t.Errorf("got %v", r)
				}
			}
			orders := len(distinct(replies, "order_no"))
			if policy == "noeviction" {
				wantUndecided(t, s.do(call{as: buyer(1001), path: "/v1/tokens", body: `{"scene":"order.create"}`}))
				if s.hits("lock", "order.create", "degraded") == 0 || orders != users {
					t.Errorf("%d orders, want %d, and guards counted as degraded", orders, users)
				}
			}
			s.must(http.StatusCreated, create(0, 3001, 1, key("no-form"), ""))
			s.wantRows(orders + 1)
			s.wantSound()
		})
	}
}

// limit gives Redis 2 MB, of which an empty one uses about half.
func limit(t *testing.T, client redis.UniversalClient, policy string) {
	t.Helper()
	for name, value := range map[string]string{"maxmemory": "2mb", "maxmemory-policy": policy} {
		if err := client.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// fill writes junk until Redis refuses, or well beyond what it can hold.
func fill(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	junk := strings.Repeat("x", 8<<10)
	for i := range 1000 {
		err := client.Set(t.Context(), fmt.Sprint("junk:", i), junk, 0).Err()
		if redis.HasErrorPrefix(err, "OOM") {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// B41: with Redis gone, each request does what it always did, and once; only tokens cannot be had. When it is back, so are
// the guards, without a restart.
func TestWithoutRedisEverythingButTokensWorks(t *testing.T) {
	for _, required := range []bool{false, true} {
		t.Run(fmt.Sprint("TOKEN_REQUIRED=", required), func(t *testing.T) {
			server := testenv.PrivateRedis(t)
			s := newStackOn(t, testenv.Database(t), server.URL(), fmt.Sprint("TOKEN_REQUIRED=", required))
			s.sku(1, 1999, 1000)
			withToken := create(0, 1001, 1, key("form"), s.token(1001))
			without := create(0, 1002, 1, key("none"), "")
			earlier := s.must(http.StatusCreated, create(0, 1003, 1, key("earlier"), s.token(1003))).field("order_no")
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			first := s.must(http.StatusCreated, withToken)
			wantReplay(t, s.do(on(1, withToken)), first)
			wantOrder(t, s.do(create(1, 1001, 1, key("another"), withToken.token)), first.field("order_no"))
			rows := 2
			for n := range 2 {
				r := s.do(on(n, without))
				switch {
				case required:
					wantProblem(t, r, http.StatusBadRequest, "submit_token_required")
				default:
					wantOrder(t, r, r.field("order_no"))
					rows = 3
				}
				s.must(http.StatusOK, on(n, s.step(1003, earlier, "cancel", "")))
				s.must(http.StatusCreated, on(n, moveStock(1, 5, key("delivery"))))
				wantUndecided(t, s.do(call{on: n, as: buyer(1001), path: "/v1/tokens", body: `{"scene":"order.create"}`}))
				s.must(http.StatusOK, call{on: n, path: "/readyz"})
			}
			if s.hits("token", "order.create", "degraded") == 0 || s.hits("lock", "order.create", "degraded") == 0 {
				t.Error("the guards that were skipped are not counted")
			}
			s.comesBack(t, server)
			wantReplay(t, s.do(withToken), first) // though its token is lost
			s.wantRows(rows + 1)
			s.wantSound()
		})
	}
}

// comesBack restarts Redis and asserts that both guards in it work again.
func (s *stack) comesBack(t *testing.T, server *embedded.Redis) {
	t.Helper()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	guarded := func() int {
		return s.hits("token", "order.create", "passed") + s.hits("lock", "order.create", "passed")
	}
	before := guarded()
	token := s.finally(t, call{as: buyer(1004), path: "/v1/tokens", body: `{"scene":"order.create"}`}).field("token")
	s.must(http.StatusCreated, create(0, 1004, 1, key("after"), token))
	if n := guarded() - before; n != 2 {
		t.Errorf("%d guards have let the request through, want token and lock", n)
	}
}

// B38: the whole service on a cluster of three: each guard's keys are on whichever node they fall, and all guards work.
func TestTheGuardsWorkOnACluster(t *testing.T) {
	s := newStack(t, "REDIS_URL=", "REDIS_ADDR="+testenv.RedisCluster(t, 3))
	s.sku(1, 1999, 1000)
	const users = 20
	tokens := make([]string, users)
	for i := range tokens {
		tokens[i] = s.token(int64(1001 + i))
	}
	replies := s.all(2*users, func(i int) call {
		u := i % users
		return create(i/users, int64(1001+u), 1, key("%d-%d", u, i), tokens[u])
	})
	if orders := distinct(replies, "order_no"); len(orders) != users || len(tally(replies)) != 1 {
		t.Errorf("%d orders, answers %v; want %d, each named twice", len(orders), tally(replies), users)
	}
	for _, guard := range []string{"token", "lock"} {
		if s.hits(guard, "order.create", "passed") == 0 || s.hits(guard, "order.create", "degraded") != 0 {
			t.Errorf("the guard %s did not work throughout", guard)
		}
	}
	s.must(http.StatusOK, call{path: "/readyz"})
	s.must(http.StatusOK, call{as: operator, path: "/v1/ops/invariants"})
	s.wantRows(users)
	s.wantSound()
}
