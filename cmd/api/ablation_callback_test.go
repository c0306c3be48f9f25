package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/testenv"
)

// callbackAblation is one row of the callback's matrix.
type callbackAblation struct {
	lockOff  bool
	redis    outage
	noIndex  bool // every unique index that could stop a second credit is dropped
	noSwap   bool // the order's compare-and-swap is defeated: a trigger undoes what it writes, so that it always matches
	paid     int  // rows of history to PAID
	credits  int
	messages int
	acked    int // deliveries answered with success
	refused  int // deliveries answered 503
	dedup    int // deliveries the trade's row stopped
	state    int // deliveries the order's history stopped
}

// once reports whether the deliveries had one effect.
func (r callbackAblation) once() bool { return r.paid == 1 && r.credits == 1 && r.messages == 1 }

// A hundred deliveries of one success at once, on two instances, each with a notify_id of its own, so that dedup by that is
// useless. Lock on or off, Redis up or down: PAID once, credited once, one message. Of the data layer's two guards, the order's
// compare-and-swap and the unique indexes, either holds alone; without both the test goes red.
func TestAblationCallbackPaysOnceWhateverIsOff(t *testing.T) {
	var rows []callbackAblation
	for _, row := range []callbackAblation{
		{redis: redisUp}, {redis: redisDown}, {lockOff: true, redis: redisUp}, {lockOff: true, redis: redisDown},
		{lockOff: true, redis: redisDown, noIndex: true}, {lockOff: true, redis: redisDown, noSwap: true},
		{lockOff: true, redis: redisDown, noIndex: true, noSwap: true},
	} {
		t.Run(row.name(), func(t *testing.T) {
			row = ablateCallback(t, row)
			unguarded := row.noIndex && row.noSwap
			if row.once() == unguarded {
				t.Errorf("PAID %d times, %d credits, %d messages; once: %v, want %v", row.paid, row.credits, row.messages, row.once(), !unguarded)
			}
			if !row.noSwap && row.acked != repeats {
				t.Errorf("%d of %d deliveries were acknowledged", row.acked, repeats)
			}
			if row.acked+row.refused != repeats {
				t.Errorf("%d acknowledged and %d undecided are not %d", row.acked, row.refused, repeats)
			}
			rows = append(rows, row)
		})
	}
	if *showAblation {
		printCallbackAblation(rows)
	}
}

func (r callbackAblation) name() string {
	off := []string{}
	for _, part := range []struct {
		is   bool
		text string
	}{{r.lockOff, "lock"}, {r.noIndex, "unique indexes"}, {r.noSwap, "compare-and-swap"}} {
		if part.is {
			off = append(off, part.text)
		}
	}
	if len(off) == 0 {
		off = append(off, "none")
	}
	return fmt.Sprintf("off=%s,redis=%s", strings.Join(off, "+"), r.redis)
}

// ablateCallback fires the deliveries at a new pair of instances and counts.
func ablateCallback(t *testing.T, row callbackAblation) callbackAblation {
	var env []string
	if row.lockOff {
		env = append(env, "DISABLE_GUARDS=lock")
	}
	s := newStack(t, env...)
	s.sku(1, 1999, 10*repeats)
	s.sabotage(t, row)
	orderNo, n := s.offered(1001)
	disturb(t, s, row.redis)
	// The first transaction commits once both instances have read what was there before it: a race for certain.
	gate := testenv.NewGate(t)
	var writers []*testenv.Rule
	for _, i := range s.instances {
		i.mysql.On(testenv.Prefix("COMMIT"), 1, testenv.Hold(gate))
		writers = append(writers, i.mysql.On(testenv.Contains("UPDATE t_order SET status"), -1, testenv.Action{}))
	}
	replies := make([]reply, repeats)
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		testenv.Together(repeats, func(i int) {
			mine := n
			mine.NotifyID = fmt.Sprintf("%s-%d", n.NotifyID, i)
			replies[i] = s.notify(i, mine)
		})
	}()
	gate.WaitEntered(t, 1)
	for _, w := range writers {
		w.Wait(t, 1)
	}
	gate.Open()
	<-delivered
	for _, r := range replies {
		switch {
		case r.status == http.StatusOK && string(r.body) == "success":
			row.acked++
		case r.status == http.StatusServiceUnavailable:
			row.refused++
		default:
			t.Errorf("unexpected answer: %v", r)
		}
	}
	row.paid = s.count("SELECT COUNT(*) FROM t_order_history WHERE order_no = ? AND to_status = 1", orderNo)
	row.credits = s.count("SELECT COUNT(*) FROM t_ledger_entry WHERE order_no = ? AND account = 'channel:mockpay'", orderNo)
	row.messages = s.count("SELECT COUNT(*) FROM t_outbox WHERE topic = 'order.paid'")
	row.dedup = s.hits("dedup", "payment.succeeded", metrics.Replayed)
	row.state = s.hits("state", "payment.succeeded", metrics.Replayed)
	if !row.noSwap {
		s.wantSound()
	}
	return row
}

// sabotage removes guards of the data layer. More goods are held than the order's, or the stock's own check would be one.
func (s *stack) sabotage(t *testing.T, row callbackAblation) {
	t.Helper()
	var ddl []string
	if row.noIndex {
		ddl = append(ddl,
			"ALTER TABLE t_trade DROP KEY uk_channel_trade", "ALTER TABLE t_payment DROP KEY uk_paid_order",
			"ALTER TABLE t_ledger_entry DROP KEY uk_cause_kind_account", "ALTER TABLE t_stock_movement DROP KEY uk_cause_kind",
			"ALTER TABLE t_order_history DROP KEY uk_order_version", "ALTER TABLE t_outbox DROP KEY uk_msg_id")
	}
	if row.noSwap {
		s.must(http.StatusCreated, call{as: buyer(1002), path: "/v1/orders", key: key("goods"), body: fmt.Sprintf(`{"sku_id":1,"quantity":%d}`, repeats)})
		ddl = append(ddl, "CREATE TRIGGER no_swap BEFORE UPDATE ON t_order FOR EACH ROW SET NEW.status = OLD.status, NEW.version = OLD.version")
	}
	for _, stmt := range ddl {
		if _, err := s.db.Exec(stmt); err != nil {
			t.Fatalf("%s: %v", stmt, err)
		}
	}
}

func printCallbackAblation(rows []callbackAblation) {
	fmt.Printf("\n%d deliveries of one payment.succeeded at once, each under a notify_id of its own, on two instances.\n\n", repeats)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "off and Redis\tPAID\tcredits\tmessages\tsuccess\t503\ttrade's row stopped\torder's history stopped")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", r.name(), r.paid, r.credits, r.messages, r.acked, r.refused, r.dedup, r.state)
	}
	w.Flush()
}
