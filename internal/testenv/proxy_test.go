package testenv_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/testenv"
)

func TestBlackholeAnswersNothingAndServesAfterwards(t *testing.T) {
	proxy := redisProxy(t)
	client := openRedis(t, proxy.Addr())
	key := ownKey(t, "k")
	if err := client.Ping(t.Context()).Err(); err != nil { // leaves an open connection
		t.Fatalf("ping: %v", err)
	}
	proxy.Blackhole(true)
	finished := make(chan error, 1)
	go func() { finished <- client.Set(t.Context(), key, "v", time.Minute).Err() }()
	testenv.Eventually(t, 10*time.Second, "command swallowed", func() error {
		if n := len(commands(proxy, testenv.Prefix("SET "+key))); n != 1 {
			return fmt.Errorf("%d in the log", n)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	fresh := openRedis(t, proxy.Addr(), func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	if err := fresh.Ping(ctx).Err(); !os.IsTimeout(err) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("new connection: error %v, want a timeout", err)
	}
	select {
	case err := <-finished:
		t.Errorf("a swallowed command ended: %v", err)
	default:
	}
	proxy.Blackhole(false)
	if err := <-finished; err == nil || os.IsTimeout(err) {
		t.Errorf("swallowed command: error %v, want a cut connection", err)
	}
	if got := stored(t, key); got != "" {
		t.Errorf("stored %q through a blackhole", got)
	}
	if err := client.Set(t.Context(), key, "v", time.Minute).Err(); err != nil {
		t.Errorf("set afterwards: %v", err)
	}
}

func TestLogProvesOrderAcrossProxies(t *testing.T) {
	database, cache := mysqlProxy(t), redisProxy(t)
	db, client := openMySQL(t, database.Addr()), openRedis(t, cache.Addr())
	key := ownKey(t, "lock")
	database.On(testenv.Prefix("COMMIT"), -1, testenv.Delay(20*time.Millisecond))
	release := func() {
		if err := client.Del(t.Context(), key).Err(); err != nil {
			t.Errorf("del: %v", err)
		}
	}
	for id, early := range []bool{false, true} {
		database.ClearLog()
		cache.ClearLog()
		if early { // the fault: released while COMMIT is on its way
			rule := database.On(testenv.Prefix("INSERT"), 1, testenv.Delay(0))
			done := make(chan struct{})
			go func() {
				defer close(done)
				rule.Wait(t, 1)
				release()
			}()
			defer func() { <-done }()
		}
		if err := insertTx(t.Context(), db, id, ""); err != nil {
			t.Fatalf("insert: %v", err)
		}
		if !early {
			release()
		}
		testenv.Eventually(t, 10*time.Second, "release seen", func() error {
			if len(commands(cache, testenv.Prefix("DEL "+key))) == 0 {
				return fmt.Errorf("not in the log")
			}
			return nil
		})
		commit := commands(database, testenv.Prefix("COMMIT"))[0]
		del := commands(cache, testenv.Prefix("DEL "+key))[0]
		if got := del.Arrived.Before(commit.Replied); got != early {
			t.Errorf("early release %t, the log says %t", early, got)
		}
	}
}

func TestLogWithoutRoomFailsTheTest(t *testing.T) {
	fake := &fatalTB{TB: t}
	_, addr := servers()
	proxy := testenv.NewRedisProxy(fake, "tcp", addr)
	client := openRedis(t, proxy.Addr())
	pipe := client.Pipeline()
	for range 1<<15 + 1 {
		pipe.Ping(t.Context())
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatalf("pipeline: %v", err)
	}
	proxy.Log()
	if !fake.failed.Load() {
		t.Error("a log that lost commands was handed out")
	}
	proxy.ClearLog()
	fake.failed.Store(false)
	if n := len(proxy.Log()); n != 0 || fake.failed.Load() {
		t.Errorf("cleared log has %d events, failed %t", n, fake.failed.Load())
	}
}

func TestProxyEndsWithItsTestWhateverIsHeld(t *testing.T) {
	finished := make(chan error, 2)
	outer := t
	t.Run("inner", func(t *testing.T) {
		gate := testenv.NewGate(t) // opens after the proxy has ended
		proxy := redisProxy(t)
		client := openRedis(outer, proxy.Addr())
		proxy.On(testenv.Prefix("PING"), 1, testenv.Hold(gate))
		proxy.On(testenv.Prefix("PING"), 1, testenv.HoldReply(gate))
		for range 2 {
			go func() { finished <- client.Ping(context.Background()).Err() }()
		}
		gate.WaitEntered(t, 2)
	})
	for range 2 {
		if err := <-finished; err == nil {
			t.Error("a held command succeeded after the proxy's end")
		}
	}
}

func TestProxyReachesAUnixSocket(t *testing.T) {
	_, addr := servers()
	path := filepath.Join(t.TempDir(), "redis.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	defer listener.Close()
	go func() { // a bridge: the real server may have no unix socket
		for {
			local, err := listener.Accept()
			if err != nil {
				return
			}
			remote, err := net.Dial("tcp", addr)
			if err != nil {
				local.Close()
				continue
			}
			go func() {
				defer remote.Close()
				_, _ = io.Copy(remote, local)
			}()
			go func() {
				defer local.Close()
				_, _ = io.Copy(local, remote)
			}()
		}
	}()
	client := openRedis(t, testenv.NewRedisProxy(t, "unix", path).Addr())
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func TestServerThatIsDownCutsTheClient(t *testing.T) {
	proxy := testenv.NewRedisProxy(t, "unix", filepath.Join(t.TempDir(), "nobody.sock"))
	if err := openRedis(t, proxy.Addr()).Ping(t.Context()).Err(); err == nil {
		t.Error("ping without a server succeeded")
	}
}

func TestFirstRuleWithTimesLeftApplies(t *testing.T) {
	proxy := redisProxy(t)
	client := openRedis(t, proxy.Addr())
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatalf("ping: %v", err)
	}
	first := proxy.On(testenv.Prefix("PING"), 2, testenv.Delay(0))
	second := proxy.On(testenv.Any(), -1, testenv.Delay(0))
	for range 5 {
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Fatalf("ping: %v", err)
		}
	}
	if first.Hits() != 2 || second.Hits() != 3 {
		t.Errorf("hits %d and %d, want 2 and 3", first.Hits(), second.Hits())
	}
}

func TestMatches(t *testing.T) {
	const set = "SET lock:{O1} SETNX px 3000 nx"
	for name, tc := range map[string]struct {
		match testenv.Match
		cmd   string
		want  bool
	}{
		"verb in another case":   {testenv.Prefix("set lock:"), set, true},
		"key in another case":    {testenv.Prefix("SET LOCK:"), set, false},
		"longer than command":    {testenv.Prefix("COMMIT AND CHAIN"), "COMMIT", false},
		"verb alone":             {testenv.Prefix("commit"), "COMMIT", true},
		"contains":               {testenv.Contains("{O1}"), set, true},
		"contains, another case": {testenv.Contains("{o1}"), set, false},
		"set nx":                 {testenv.SetNX("lock:"), set, true},
		"set nx, another key":    {testenv.SetNX("token:"), set, false},
		"set without nx":         {testenv.SetNX("lock:"), "SET lock:a nx px 3000", false},
		"setnx":                  {testenv.SetNX("lock:"), "SETNX lock:a v", true},
		"get":                    {testenv.SetNX("lock:"), "GET lock:a v nx", false},
	} {
		if got := tc.match(tc.cmd); got != tc.want {
			t.Errorf("%s: %t for %q, want %t", name, got, tc.cmd, tc.want)
		}
	}
}
