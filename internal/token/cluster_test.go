package token

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/lock"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/redisdb"
	"example.com/oncepay/internal/testenv"
)

// B38: every script of this package, and of lock, which is tested here to share the cluster, runs on a cluster,
// whichever node has the key.
func TestScriptsRunOnACluster(t *testing.T) {
	client, err := redisdb.Open(newCluster(t, 2), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s := newStore(client)
	l := &lock.Redis{Client: client, TTL: 300 * time.Millisecond, Metrics: metrics.New(), Log: slog.New(slog.DiscardHandler)}
	const n = 20 // about ten keys on each node
	var settled, released [n]string
	for i := range n {
		settled[i], released[i] = issue(t, s), issue(t, s)
	}
	testenv.Together(n, func(i int) {
		key := fmt.Sprint("order:", i)
		err := l.Do(t.Context(), "test", key, func(ctx context.Context) error {
			c1, err1 := claim(ctx, s, settled[i], "me")
			c2, err2 := claim(ctx, s, released[i], "me")
			c1.Settle(ctx)
			c2.Release(ctx)
			return errors.Join(err1, err2, untilRenewed(ctx, client, "oncepay:lock:{"+key+"}"))
		})
		if err != nil {
			t.Error(err)
		}
		if n := client.Exists(t.Context(), "oncepay:lock:{"+key+"}").Val(); n != 0 {
			t.Errorf("the lock on %s is still there", key)
		}
		if _, err := claim(t.Context(), s, settled[i], "other"); !errors.Is(err, ErrSpent) {
			t.Errorf("settled token: got %v, want ErrSpent", err)
		}
		if _, err := claim(t.Context(), s, released[i], "other"); err != nil {
			t.Errorf("released token: %v", err)
		}
	})
	wantHits(t, s, map[string]int{metrics.Passed: 3 * n, metrics.Blocked: n})
}

// untilRenewed returns once the lock at key has more time to live than a moment before.
func untilRenewed(ctx context.Context, client redis.UniversalClient, key string) error {
	for last := time.Hour; ; {
		ttl, err := client.PTTL(ctx, key).Result()
		if err != nil || ttl > last {
			return err
		}
		last = ttl
	}
}

// newCluster starts a Redis cluster of n nodes and returns their addresses as a comma list.
func newCluster(t *testing.T, n int) string {
	t.Helper()
	const slots = 16384 // of every Redis cluster
	var addrs []string
	var nodes []*redis.Client
	var meet []any // the command by which a node gets to know the first one
	for i := range n {
		port, bus := freePort(t), freePort(t)
		startNode(t, port, bus)
		addrs = append(addrs, net.JoinHostPort("127.0.0.1", port))
		node := redis.NewClient(&redis.Options{Addr: addrs[i], DialerRetries: 1})
		t.Cleanup(func() { node.Close() })
		nodes = append(nodes, node)
		testenv.Eventually(t, patience, "node answers", func() error { return node.Ping(t.Context()).Err() })
		err := node.ClusterAddSlotsRange(t.Context(), i*slots/n, (i+1)*slots/n-1).Err()
		if i == 0 {
			meet = []any{"CLUSTER", "MEET", "127.0.0.1", port, bus}
		} else {
			err = errors.Join(err, node.Do(t.Context(), meet...).Err())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range nodes {
		testenv.Eventually(t, patience, "cluster is complete", func() error {
			info, err := node.ClusterInfo(t.Context()).Result()
			if err == nil && !strings.Contains(info, "cluster_state:ok") {
				err = errors.New(info)
			}
			return err
		})
	}
	return strings.Join(addrs, ",")
}

// startNode starts a node that ends with the test.
func startNode(t *testing.T, port, bus string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "redis-server", "--bind", "127.0.0.1", "--port", port,
		"--cluster-enabled", "yes", "--cluster-port", bus, "--dir", t.TempDir(), "--save", "")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Before the clean-ups run, t.Context ends and with it the process.
	t.Cleanup(func() { _ = cmd.Wait() }) // "signal: killed" is what is wanted
}

// freePort is a TCP port that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
