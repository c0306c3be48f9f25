package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/redisdb"
	"example.com/oncepay/internal/testenv"
)

// B36: a reply to somebody else's command is never taken for ours.
func TestForeignReplyIsNotAccepted(t *testing.T) {
	for name, reply := range map[string][]any{
		"another key":   {redisKey("other"), "", wordAcquired},
		"another owner": {redisKey("k"), "other", wordAcquired},
		"no key":        {wordAcquired},
	} {
		t.Run(name, func(t *testing.T) {
			client := openRedis(t, newServer(t).URL())
			client.AddHook(processHook(func(cmd redis.Cmder, next func() error) error {
				err := next()
				if c, ok := cmd.(*redis.Cmd); ok && c.Args()[0] != "evalsha" { // the first try has an unknown script
					if reply[0] == redisKey("other") {
						reply[1] = c.Args()[4] // the right owner
					}
					c.SetVal(reply)
				}
				return err
			}))
			l := newLock(client)
			_, err := l.run(t.Context(), acquireScript, &lease{key: redisKey("k"), owner: "me"}, l.TTL.Milliseconds())
			if !errors.Is(err, redisdb.ErrForeignReply) {
				t.Errorf("got %v, want redisdb.ErrForeignReply", err)
			}
		})
	}
}

// B36: calls cancelled at random moments on slow connections never confuse each other: never two holders, never work
// under a lock whose value names another key, and no lock is left behind.
func TestRandomCancellations(t *testing.T) {
	server := newServer(t)
	proxy, proxied := testenv.BehindRedisProxy(t, server.URL())
	proxy.On(testenv.Prefix("EVAL"), -1, testenv.Jitter(10*time.Millisecond))
	direct := openRedis(t, server.URL())
	l := newLock(openRedis(t, proxied))
	l.TTL = 5 * time.Second // never lost, and what a cancelled call left behind still ends within the test
	const workers, callsEach, keys = 40, 60, 8
	var inside [keys]atomic.Int32
	var ran atomic.Int32
	testenv.Together(workers, func(int) {
		for range callsEach {
			n := rand.N(keys)
			key := fmt.Sprint("k", n)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.N(20))*time.Millisecond)
			err := l.Do(ctx, operation, key, func(context.Context) error {
				if holders := inside[n].Add(1); holders > 1 {
					t.Errorf("%d holders of %s", holders, key)
				}
				defer inside[n].Add(-1)
				ran.Add(1)
				value, err := direct.Get(t.Context(), redisKey(key)).Result()
				if err != nil || !strings.HasPrefix(value, redisKey(key)+" ") {
					t.Errorf("holding %s, its value is %q, %v", key, value, err)
				}
				return nil
			})
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
	})
	if ran.Load() == 0 {
		t.Error("no call got a lock; the test shows nothing")
	}
	testenv.Eventually(t, patience, "locks end", func() error {
		if n := direct.DBSize(t.Context()).Val(); n != 0 {
			return fmt.Errorf("%d locks left", n)
		}
		return nil
	})
}

// processHook sees every command of a client.
type processHook func(cmd redis.Cmder, next func() error) error

func (processHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (processHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h processHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h(cmd, func() error { return next(ctx, cmd) })
	}
}
