package testenv_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/testenv"
)

// openRedis returns a client that goes to addr and does not retry.
func openRedis(t *testing.T, addr string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	options := &redis.Options{Addr: addr, MaxRetries: -1, PoolSize: 200}
	for _, f := range change {
		f(options)
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	return client
}

func redisProxy(t *testing.T) *testenv.Proxy {
	t.Helper()
	_, addr := servers()
	return testenv.NewRedisProxy(t, "tcp", addr)
}

// ownKey returns a key of this test and run, removed at its end.
func ownKey(t *testing.T, name string) string {
	t.Helper()
	key := fmt.Sprintf("testenv:%d:%s:%s", os.Getpid(), t.Name(), name)
	_, addr := servers()
	direct := openRedis(t, addr)
	t.Cleanup(func() { direct.Del(context.Background(), key) })
	return key
}

// stored reads a key through a connection that bypasses the proxy; "" is absent.
func stored(t *testing.T, key string) string {
	t.Helper()
	_, addr := servers()
	value, err := openRedis(t, addr).Get(t.Context(), key).Result()
	if err != nil && err != redis.Nil {
		t.Fatalf("get %s: %v", key, err)
	}
	return value
}

func TestRedisEveryFormOfReplyPasses(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			client := openRedis(t, redisProxy(t).Addr(), func(o *redis.Options) {
				o.Protocol, o.PoolSize = protocol, 1 // one reply taken for another would show
			})
			ctx, key := t.Context(), ownKey(t, "hash")
			value := string(bytes.Repeat([]byte("\r\n$5\x00"), 100_000))
			fields := map[string]string{"a": "1", "large": value, "empty": ""}
			if err := client.HSet(ctx, key, fields).Err(); err != nil {
				t.Fatalf("hset: %v", err)
			}
			for range 3 {
				if got, err := client.HGetAll(ctx, key).Result(); err != nil || got["large"] != value || len(got) != 3 {
					t.Fatalf("hgetall: %d fields, error %v", len(got), err)
				}
				if err := client.Get(ctx, key+"-missing").Err(); err != redis.Nil {
					t.Fatalf("get of a missing key: %v, want redis.Nil", err)
				}
				if err := client.Incr(ctx, key).Err(); err == nil || !strings.HasPrefix(err.Error(), "WRONGTYPE") {
					t.Fatalf("incr of a hash: %v, want WRONGTYPE", err)
				}
				got, err := client.Eval(ctx, "return {1, {2, 'x', {}}, false, {ok = 'fine'}}", nil).Result()
				if want := "[1 [2 x []] <nil> fine]"; err != nil || fmt.Sprint(got) != want {
					t.Fatalf("eval: %v, error %v, want %s", got, err, want)
				}
			}
		})
	}
}

func TestRedisSwallowedSetNXIsStored(t *testing.T) {
	proxy := redisProxy(t)
	client := openRedis(t, proxy.Addr())
	key := ownKey(t, "lock")
	rule := proxy.On(testenv.SetNX(key), 1, testenv.SwallowReply())
	if err := client.Set(t.Context(), key, "plain", time.Minute).Err(); err != nil {
		t.Fatalf("set: %v", err)
	}
	if err := client.Del(t.Context(), key).Err(); err != nil {
		t.Fatalf("del: %v", err)
	}
	if ok, err := client.SetNX(t.Context(), key, "owner", time.Minute).Result(); err == nil {
		t.Errorf("set nx: %t without an error although the reply was swallowed", ok)
	}
	if got := stored(t, key); got != "owner" {
		t.Errorf("stored %q, want owner", got)
	}
	if ok, err := client.SetNX(t.Context(), key, "second", time.Minute).Result(); ok || err != nil {
		t.Errorf("second set nx: %t, %v, want false", ok, err)
	}
	if rule.Hits() != 1 {
		t.Errorf("%d hits, want 1", rule.Hits())
	}
}

func TestRedisScriptsAreSeenWithTheirKeys(t *testing.T) {
	proxy := redisProxy(t)
	client := openRedis(t, proxy.Addr())
	key := ownKey(t, "script")
	// The text is new to the server in every run, so that EVAL follows EVALSHA.
	script := redis.NewScript(fmt.Sprintf("return redis.call('INCR', KEYS[1]) -- %d", time.Now().UnixNano()))
	rule := proxy.On(testenv.Prefix("EVALSHA "+script.Hash()+" 1 "+key), -1, testenv.DelayRequest(0))
	for want := range 2 {
		got, err := script.Run(t.Context(), client, []string{key}).Int()
		if err != nil || got != want+1 {
			t.Errorf("run: %d, error %v, want %d", got, err, want+1)
		}
	}
	rule.Wait(t, 2)
	if n := len(commands(proxy, testenv.Prefix("eval"))); n != 3 {
		t.Errorf("%d scripts in the log, want EVALSHA, EVAL, EVALSHA", n)
	}
}

func TestRedisRuleInsideAPipelineHitsOnlyItsCommand(t *testing.T) {
	for name, tc := range map[string]struct {
		action     testenv.Action
		wantMiddle string
	}{
		"CutBefore":    {testenv.CutBefore(), ""},
		"SwallowReply": {testenv.SwallowReply(), "v"},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := redisProxy(t)
			first, middle, last := ownKey(t, "first"), ownKey(t, "middle"), ownKey(t, "last")
			proxy.On(testenv.Contains(middle), 1, tc.action)
			// Without go-redis, which hides the replies before an error.
			client, err := net.Dial("tcp", proxy.Addr())
			if err != nil {
				t.Fatalf("dial: %v", err)
			}
			defer client.Close()
			const before = 2000 // more than one buffer
			pipeline := strings.Repeat(setCommand(first), before) + setCommand(middle) + setCommand(last)
			if _, err := io.WriteString(client, pipeline); err != nil {
				t.Fatalf("write: %v", err)
			}
			// The error, if any, is that of a cut connection.
			replies, _ := io.ReadAll(client)
			if want := strings.Repeat("+OK\r\n", before); string(replies) != want {
				t.Errorf("%d bytes of replies, want %d, and then the end", len(replies), len(want))
			}
			if a, b, c := stored(t, first), stored(t, middle), stored(t, last); a != "v" || b != tc.wantMiddle || c != "" {
				t.Errorf("stored %q, %q, %q, want v, %q and nothing", a, b, c, tc.wantMiddle)
			}
		})
	}
}

func setCommand(key string) string {
	return fmt.Sprintf("*3\r\n$3\r\nset\r\n$%d\r\n%s\r\n$1\r\nv\r\n", len(key), key)
}

func TestRedisHeldCommandLetsEarlierOnesOfItsPipelineGo(t *testing.T) {
	proxy, gate := redisProxy(t), testenv.NewGate(t)
	client := openRedis(t, proxy.Addr())
	first, middle, last := ownKey(t, "first"), ownKey(t, "middle"), ownKey(t, "last")
	proxy.On(testenv.Contains(middle), 1, testenv.Hold(gate))
	finished := make(chan error, 1)
	go func() {
		_, err := client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for _, key := range []string{first, middle, last} {
				pipe.Set(t.Context(), key, "v", time.Minute)
			}
			return nil
		})
		finished <- err
	}()
	gate.WaitEntered(t, 1)
	testenv.Eventually(t, 10*time.Second, "first command executed", func() error {
		if got := stored(t, first); got != "v" {
			return fmt.Errorf("stored %q", got)
		}
		return nil
	})
	if a, b := stored(t, middle), stored(t, last); a != "" || b != "" {
		t.Errorf("stored %q and %q while held, want nothing", a, b)
	}
	gate.Open()
	if err := <-finished; err != nil {
		t.Errorf("pipeline: %v", err)
	}
	if a, b := stored(t, middle), stored(t, last); a != "v" || b != "v" {
		t.Errorf("stored %q and %q, want v and v", a, b)
	}
}

func TestRedisDelayLetsACommandRunPastItsDeadline(t *testing.T) {
	proxy := redisProxy(t)
	client := openRedis(t, proxy.Addr(), func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	key := ownKey(t, "lock")
	if err := client.Ping(t.Context()).Err(); err != nil { // connect first
		t.Fatalf("ping: %v", err)
	}
	late := proxy.On(testenv.SetNX(key), 1, testenv.Delay(time.Hour))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := client.SetNX(ctx, key, "v", time.Minute).Err(); err == nil {
		t.Error("no error although the reply was an hour late")
	}
	late.Wait(t, 1)
	testenv.Eventually(t, 10*time.Second, "command executed", func() error {
		if got := stored(t, key); got != "v" {
			return fmt.Errorf("stored %q", got)
		}
		return nil
	})

	const short = 30 * time.Millisecond
	for name, action := range map[string]testenv.Action{
		"Delay": testenv.Delay(short), "DelayRequest": testenv.DelayRequest(short),
	} {
		rule := proxy.On(testenv.Prefix("GET "+key), -1, action)
		start := time.Now()
		if got, err := client.Get(t.Context(), key).Result(); got != "v" || err != nil {
			t.Errorf("%s: get %q, %v", name, got, err)
		}
		if took := time.Since(start); took < short {
			t.Errorf("%s: took %s, want %s or more", name, took, short)
		}
		rule.Stop()
		if rule.Hits() != 1 {
			t.Errorf("%s: %d hits, want 1", name, rule.Hits())
		}
	}
}

func TestRedisManyClientsGetTheirOwnReplies(t *testing.T) {
	proxy := redisProxy(t)
	client := openRedis(t, proxy.Addr())
	proxy.On(testenv.Prefix("GET"), -1, testenv.Jitter(2*time.Millisecond))
	const clients, rounds = 200, 20
	keys := make([]string, clients)
	for i := range keys {
		keys[i] = ownKey(t, fmt.Sprint(i))
	}
	testenv.Together(clients, func(i int) {
		for round := range rounds {
			value := fmt.Sprint(keys[i], " ", round)
			var get *redis.StringCmd
			_, err := client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
				pipe.Set(t.Context(), keys[i], value, time.Minute)
				get = pipe.Get(t.Context(), keys[i])
				return nil
			})
			if err != nil || get.Val() != value {
				t.Errorf("client %d: %q, error %v, want %q", i, get.Val(), err, value)
				return
			}
		}
	})
	if n := len(commands(proxy, testenv.Prefix("SET testenv:"))); n != clients*rounds {
		t.Errorf("%d SETs in the log, want %d", n, clients*rounds)
	}
}
