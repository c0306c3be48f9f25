package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/testenv"
)

// showAblation makes the test print its matrix for a person (make ablation).
var showAblation = flag.Bool("ablation", false, "print the ablation matrix to stdout")

// repeats is how many requests ask for the one action: half under one Idempotency-Key, as a client that retries, half each
// under a key of its own, as a client that gets it wrong. All carry the same submit token.
const repeats = 100

// outage is what happens to Redis meanwhile.
type outage string

const (
	redisUp      outage = "up"
	redisDown    outage = "down"
	redisFlushed outage = "flushed" // while the first transaction waits to commit
)

// ablation is one row of the matrix.
type ablation struct {
	off      []string
	redis    outage
	noIndex  bool
	orders   int
	moves    int
	messages int
	made     int // answers 201
	refused  int // answers 409
	other    int // anything else
	token    int // requests the token guard stopped
	queued   int // requests that waited for the lock
	key      int // requests that got the stored answer
	index    int // requests the unique index stopped
	degraded int // times a guard in Redis was skipped
}

// The heart of the reference: whatever subset of the upper guards is off, and whatever happens to Redis, a hundred repeats
// of one action on two instances leave one order, one stock movement and one message.
func TestAblationAnySubsetOfGuardsLeavesOneOrder(t *testing.T) {
	var rows []ablation
	for _, off := range subsets("token", "lock", "idempotency_key") {
		for _, redis := range []outage{redisUp, redisDown, redisFlushed} {
			t.Run(fmt.Sprintf("off=%s,redis=%s", strings.Join(off, "+"), redis), func(t *testing.T) {
				row := ablate(t, ablation{off: off, redis: redis})
				if row.orders != 1 || row.moves != 1 || row.messages != 1 {
					t.Errorf("orders, movements, messages = %d, %d, %d; want one of each", row.orders, row.moves, row.messages)
				}
				if row.made == 0 || row.other != 0 {
					t.Errorf("%d answers 201, %d neither 201 nor 409; want some and none", row.made, row.other)
				}
				rows = append(rows, row)
			})
		}
	}
	t.Run("without the unique index", func(t *testing.T) {
		row := ablate(t, ablation{off: []string{"token", "lock", "idempotency_key"}, redis: redisUp, noIndex: true})
		if row.orders < 2 {
			t.Errorf("%d orders without any guard: this test could not fail", row.orders)
		}
		rows = append(rows, row)
	})
	if *showAblation {
		printAblation(rows)
	}
}

// subsets returns all subsets, the empty one first.
func subsets(items ...string) [][]string {
	all := [][]string{nil}
	for _, item := range items {
		for _, s := range all {
			all = append(all, append(append([]string(nil), s...), item))
		}
	}
	return all
}

// ablate fires the repeats at a new pair of instances and counts who stopped what.
func ablate(t *testing.T, row ablation) ablation {
	s := newStack(t, "DISABLE_GUARDS="+strings.Join(row.off, ","), "LOCK_WAIT=5s")
	s.sku(1, 1999, 10*repeats)
	token := s.token(1001)
	if row.noIndex {
		if _, err := s.db.Exec("ALTER TABLE t_order DROP KEY uk_biz_token"); err != nil {
			t.Fatal(err)
		}
	}
	disturb(t, s, row.redis)
	replies := s.all(repeats, func(i int) call {
		k := key("retry")
		if i%4 >= 2 {
			k = key("new-%d", i)
		}
		return create(i, 1001, 1, k, token)
	})
	for _, r := range replies {
		switch r.status {
		case http.StatusCreated:
			row.made++
		case http.StatusConflict:
			row.refused++
		default:
			row.other++
			t.Logf("unexpected answer: %v", r)
		}
	}
	const op = "order.create"
	row.orders = s.count("SELECT COUNT(*) FROM t_order")
	row.moves = s.count("SELECT COUNT(*) FROM t_stock_movement WHERE kind = 'reserve'")
	row.messages = s.count("SELECT COUNT(*) FROM t_outbox")
	row.token = s.hits("token", op, metrics.Blocked)
	row.queued = s.hits("lock", op, metrics.Waited) + s.hits("lock", op, metrics.Blocked)
	row.key = s.hits("idempotency_key", op, metrics.Replayed) + s.hits("idempotency_key", op, metrics.Blocked)
	row.index = s.hits("unique_index", op, metrics.Replayed)
	row.degraded = s.hits("token", op, metrics.Degraded) + s.hits("lock", op, metrics.Degraded)
	if !row.noIndex {
		s.wantSound()
	}
	return row
}

// disturb prepares what is to happen to Redis.
func disturb(t *testing.T, s *stack, what outage) {
	switch what {
	case redisDown:
		for _, i := range s.instances {
			i.redis.Down()
		}
	case redisFlushed:
		gate := testenv.NewGate(t)
		for _, i := range s.instances {
			i.mysql.On(testenv.Prefix("COMMIT"), 1, testenv.Hold(gate))
		}
		client := testenv.OpenRedis(t, s.redisURL)
		go func() {
			defer gate.Open()
			gate.WaitEntered(t, 1)
			if err := client.FlushDB(context.Background()).Err(); err != nil {
				t.Errorf("flush: %v", err)
			}
		}()
	}
}

func printAblation(rows []ablation) {
	fmt.Printf("%d requests for one action at once, half under one Idempotency-Key, half each under its own; one submit token; two instances.\n\n", repeats)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "guards off\tRedis\torders\tstock moves\tmessages\t201\t409\ttoken stopped\tlock queued\tkey replayed\tindex stopped\tdegraded")
	for _, r := range rows {
		off := strings.Join(r.off, ", ")
		if off == "" {
			off = "none"
		}
		if r.noIndex {
			off = "all, and uk_biz_token dropped"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", off, r.redis, r.orders, r.moves, r.messages,
			r.made, r.refused, r.token, r.queued, r.key, r.index, r.degraded)
	}
	w.Flush()
}
