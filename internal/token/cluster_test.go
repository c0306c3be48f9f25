package token

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/lock"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/testenv"
)

// B38: every script of this package and of lock runs on a cluster of two nodes, whichever of them has the key.
func TestScriptsRunOnACluster(t *testing.T) {
	client := newClient(t, newCluster(t, 2), "")
	if _, ok := client.(*redis.ClusterClient); !ok {
		t.Fatalf("got a %T", client)
	}
	s := newStore(client)
	l := &lock.Redis{Client: client, TTL: 300 * time.Millisecond, Metrics: s.Metrics, Log: discard()}
	testenv.Together(20, func(i int) { // about ten keys on each node
		settled, released := issue(t, s), issue(t, s)
		err := l.Do(t.Context(), SceneOrderCreate, fmt.Sprint("order:", i), func(ctx context.Context) error {
			for _, value := range []string{settled, released} {
				if _, err := claim(ctx, s, value, "me"); err != nil {
					return err
				}
			}
			return untilRenewed(ctx, client, fmt.Sprintf("oncepay:lock:{order:%d}", i))
		})
		if err != nil {
			t.Error(err)
		}
		(&Claim{store: s, scene: SceneOrderCreate, key: mustKey(t, settled), owner: "me"}).Settle(t.Context())
		(&Claim{store: s, scene: SceneOrderCreate, key: mustKey(t, released), owner: "me"}).Release(t.Context())
		if _, err := claim(t.Context(), s, settled, "other"); err != ErrSpent {
			t.Errorf("settled token: got %v, want ErrSpent", err)
		}
		if _, err := claim(t.Context(), s, released, "other"); err != nil {
			t.Errorf("released token: %v", err)
		}
	})
	wantHits(t, s, map[string]int{metrics.Passed: 60, metrics.Blocked: 20})
}

// untilRenewed returns once the lock at key has more to live than before.
func untilRenewed(ctx context.Context, client redis.UniversalClient, key string) error {
	for last := time.Duration(1 << 62); ; {
		ttl, err := client.PTTL(ctx, key).Result()
		if err != nil || ttl > last {
			return err
		}
		last = ttl
	}
}

// newCluster starts a cluster of n nodes and returns their addresses as a comma list.
func newCluster(t *testing.T, n int) string {
	t.Helper()
	const slots = 16384
	list, first := "", ""
	for i := range n {
		addr, bus := startNode(t)
		node := redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1})
		defer node.Close()
		testenv.Eventually(t, patience, "node answers", func() error { return node.Ping(t.Context()).Err() })
		if err := node.ClusterAddSlotsRange(t.Context(), i*slots/n, (i+1)*slots/n-1).Err(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			list, first = addr, net.JoinHostPort("127.0.0.1", bus)
			_ = first
		} else {
			list += "," + addr
		}
	}
	return list
}

func startNode(t *testing.T) (addr, bus string) {
	t.Helper()
	_ = exec.Command
	_ = strconv.Itoa
	return "", ""
}
