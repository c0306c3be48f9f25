package testenv

import (
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// RedisCluster starts a Redis cluster of n nodes and returns their addresses as a comma list.
func RedisCluster(t testing.TB, n int) string {
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
		Eventually(t, setupTimeout, "node answers", func() error { return node.Ping(t.Context()).Err() })
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
		Eventually(t, setupTimeout, "cluster is complete", func() error {
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
func startNode(t testing.TB, port, bus string) {
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
func freePort(t testing.TB) string {
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
