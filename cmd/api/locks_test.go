package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/bizkey"
	"example.com/oncepay/internal/testenv"
)

// shortLease makes a lock that is not renewed end while a test waits, and lets the others queue for longer than that.
func shortLease() []string { return []string{"LOCK_TTL=600ms", "LOCK_WAIT=4s"} }

// inSale is the purchase of SKU 1 by user 1001 in the activity "sale", under a key of its own.
func inSale(on int, k string) call { return inActivity(create(on, 1001, 1, key("%s", k), ""), "sale") }

// saleLock is where the lock of inSale lives.
func saleLock() string { return "oncepay:lock:{" + bizkey.Build("o1:a", "1001", "1", "sale") + "}" }

// shop has SKU 1 and the activity "sale".
func (s *stack) shop(stock int64) {
	s.t.Helper()
	s.sku(1, 1999, stock)
	s.activity("sale")
}

// untilLost returns once a holder has noticed that its lock is lost.
func (s *stack) untilLost() {
	s.t.Helper()
	testenv.Eventually(s.t, setupWait, "the holder notices", func() error {
		if s.hits("lock", "order.create", "lost") == 0 {
			return errors.New("no lock is lost yet")
		}
		return nil
	})
}

// B28, B29, B30: a holder is stopped behind its lock, or at its COMMIT, and its lock is lost. Another request of the same
// action enters; there is one order, and the late one gets a refusal or that order.
func TestALostLockDoublesNothing(t *testing.T) {
	losses := map[string]func(t *testing.T, s *stack, stall func() error) error{
		"Redis stalls":      func(_ *testing.T, _ *stack, stall func() error) error { return stall() },
		"only one loses it": func(_ *testing.T, s *stack, _ func() error) error { s.instances[0].redis.Down(); return nil },
		"its lock is deleted": func(t *testing.T, s *stack, _ func() error) error {
			return testenv.OpenRedis(t, s.redisURL).Del(t.Context(), saleLock()).Err()
		},
	}
	for name, lose := range losses {
		for _, point := range []string{"START TRANSACTION", "COMMIT"} {
			t.Run(name+", at "+point, func(t *testing.T) {
				server := testenv.PrivateRedis(t)
				s := newStackOn(t, testenv.Database(t), server.URL(), shortLease()...)
				s.shop(1000)
				gate := testenv.NewGate(t)
				s.instances[0].mysql.On(testenv.Prefix(point), 1, testenv.Hold(gate))
				late := s.background(inSale(0, "late"))
				gate.WaitEntered(t, 1)
				if err := lose(t, s, server.Pause); err != nil {
					t.Fatal(err)
				}
				s.untilLost()
				next := s.background(inSale(1, "next"))
				if point == "COMMIT" { // the next one queues in the database, behind the unique index
					s.untilWaiting(t, "INSERT INTO t_order (")
					gate.Open()
				}
				second := <-next
				gate.Open()
				first := <-late
				wantOrder(t, second, second.field("order_no"))
				if point == "COMMIT" {
					wantOrder(t, first, second.field("order_no"))
				} else {
					wantProblem(t, first, http.StatusConflict, "lock_lost")
				}
				if err := server.Resume(); err != nil {
					t.Fatal(err)
				}
				s.instances[0].redis.Up()
				wantOrder(t, s.finally(t, inSale(0, "late")), second.field("order_no"))
				s.wantRows(1)
				s.wantSound()
			})
		}
	}
}

// untilWaiting returns once a statement that contains text waits at the server.
func (s *stack) untilWaiting(t *testing.T, text string) {
	t.Helper()
	testenv.Eventually(t, setupWait, "the statement is at the server", func() error {
		if s.count(`SELECT COUNT(*) FROM information_schema.processlist
			WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE CONCAT('%', ?, '%')`, text) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
}

// B30: an old owner whose lock was deleted neither renews, nor extends, nor releases the one of the next.
func TestAnOldOwnerLeavesTheNextLockAlone(t *testing.T) {
	s := newStack(t, shortLease()...)
	s.shop(1000)
	client := testenv.OpenRedis(t, s.redisURL)
	value := func() string { return client.Get(t.Context(), saleLock()).Val() }
	first, second := testenv.NewGate(t), testenv.NewGate(t)
	s.instances[0].mysql.On(testenv.Prefix("START TRANSACTION"), 1, testenv.Hold(first))
	s.instances[1].mysql.On(testenv.Prefix("START TRANSACTION"), 1, testenv.Hold(second))
	old := s.background(inSale(0, "old"))
	first.WaitEntered(t, 1)
	olds := value()
	if err := client.Del(t.Context(), saleLock()).Err(); err != nil {
		t.Fatal(err)
	}
	next := s.background(inSale(1, "next"))
	second.WaitEntered(t, 1)
	nexts := value()
	s.untilLost() // the old one's renewal has ticked
	wantProblem(t, <-old, http.StatusConflict, "lock_lost")
	if got := value(); got != nexts || got == olds || got == "" {
		t.Errorf("the lock is %q; want the next one's %q", got, nexts)
	}
	second.Open()
	wantOrder(t, <-next, s.finally(t, inSale(0, "old")).field("order_no"))
	s.wantRows(1)
	s.wantSound()
}

// B32: two hundred requests on a key that a stranger holds, and fifty on other keys. The first are told to come again, in
// time; the others do not notice; nothing is left behind.
func TestWaitingForALockIsBounded(t *testing.T) {
	const wait = time.Second
	s := newStack(t, "LOCK_WAIT="+wait.String())
	s.shop(1000)
	if err := testenv.OpenRedis(t, s.redisURL).SetNX(t.Context(), saleLock(), "a stranger", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	// Under the race detector on a busy machine, 250 requests at once need some seconds by themselves. Redis can then seem
	// gone to some, who go on without the lock, as the outcome "degraded" says. So they come in waves.
	const stuck, free, wave, margin = 200, 50, 10, 8 * time.Second
	for i := range stuck + free {
		if i%5 == 4 {
			s.sku(int64(2000+i), 1999, 1) // goods of their own too, or they would queue for the SKU's row
		}
	}
	arrived := make([]*testenv.Rule, len(s.instances))
	for n, i := range s.instances {
		arrived[n] = i.mysql.On(testenv.Contains("test-key"), -1, testenv.Action{})
	}
	pending := make([]<-chan reply, 0, stuck+free)
	for i := range stuck + free {
		if i%5 < 4 {
			pending = append(pending, s.background(inSale(i, fmt.Sprint("stuck-", i))))
		} else {
			pending = append(pending, s.background(create(i, int64(2000+i), int64(2000+i), key("free"), "")))
		}
		if n := i + 1; n%wave == 0 {
			arrived[0].Wait(t, n/len(arrived))
			arrived[1].Wait(t, n/len(arrived))
		}
	}
	replies := make([]reply, len(pending))
	for i := range pending {
		replies[i] = <-pending[i]
	}
	unguarded := s.hits("lock", "order.create", "degraded")
	for i, r := range replies {
		switch {
		case i%5 == 4 || r.status == http.StatusCreated && unguarded > 0:
			wantOrder(t, r, r.field("order_no"))
		case r.status == http.StatusServiceUnavailable && unguarded > 0: // or queued in the database for too long
			wantUndecided(t, r)
		case r.field("layer") != "lock" || r.header.Get("Retry-After") == "" || r.took < wait || r.took > wait+margin:
			t.Errorf("after %v: %v; want to be told by the lock, within %v or little more, when to ask again", r.took, r, wait)
		default:
			wantProblem(t, r, http.StatusConflict, "lock_busy")
		}
	}
	if n := s.hits("lock", "order.create", "blocked"); n == 0 || n+unguarded < stuck {
		t.Errorf("%d requests waited in vain, %d went on without Redis; want %d", n, unguarded, stuck)
	}
	if n := s.hits("lock", "order.create", "waited"); n != 0 {
		t.Errorf("%d requests on other keys queued", n)
	}
	s.untilIdle(t)
	s.wantRows(len(distinct(replies, "order_no")))
	s.wantSound()
}

// untilIdle returns once no connection is in use, and no goroutine of a guard or a handler is left.
func (s *stack) untilIdle(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, setupWait, "everything is at rest", func() error {
		for _, i := range s.instances {
			if n := i.svc.stores.db.Stats().InUse; n > 0 {
				return fmt.Errorf("%d connections to MySQL are in use", n)
			}
			if pool := i.svc.stores.redis.PoolStats(); pool.TotalConns != pool.IdleConns {
				return fmt.Errorf("connections to Redis: %+v", pool)
			}
		}
		var stacks strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil {
			return err
		}
		for _, of := range []string{"internal/lock.", "internal/token.", "internal/order.", "database/sql.(*Tx)."} {
			if strings.Contains(stacks.String(), of) {
				return fmt.Errorf("a goroutine of %s is left", of)
			}
		}
		return nil
	})
}

// B35: the answer to the lock's command comes too late to rely on. The request goes on in time, and the caller has not
// locked itself out.
func TestALateGrantLocksNobodyOut(t *testing.T) {
	for name, late := range map[string]testenv.Action{
		"past the renewal":            testenv.Delay(300 * time.Millisecond), // of 600 ms
		"past the command's time-out": testenv.Delay(2 * time.Second),
		"past LOCK_WAIT":              testenv.Delay(5 * time.Second),
		"the command itself is late":  testenv.DelayRequest(700 * time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t, shortLease()...)
			s.shop(1000)
			rule := s.instances[0].redis.On(testenv.Contains(saleLock()), 1, late)
			first := s.do(inSale(0, "first"))
			if rule.Hits() != 1 || first.took > s.instances[0].svc.cfg.RequestTimeout {
				t.Errorf("%d commands were late, the answer took %v", rule.Hits(), first.took)
			}
			wantOrder(t, first, first.field("order_no"))
			wantOrder(t, s.do(inSale(0, "second")), first.field("order_no"))
			wantOrder(t, s.do(inSale(1, "third")), first.field("order_no"))
			s.wantRows(1)
			s.wantSound()
		})
	}
}

// B33: whatever becomes of a request, its lock is released after the last word of its transactions.
func TestTheLockOutlivesTheTransaction(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	for _, i := range s.instances {
		// Ten of these follow each other on the SKU's row, well within the 3 s that a statement waits for it.
		i.mysql.On(testenv.Prefix("COMMIT"), -1, testenv.DelayRequest(50*time.Millisecond))
	}
	replies := s.all(50, func(i int) call { return create(i, int64(1001+i%2*i), 1, key("buyer-%d", i), "") })
	if got := tally(replies); got["201 "] != 10 || got["409 out_of_stock"] != 40 {
		t.Errorf("answers: %v; want 10 orders and 40 out_of_stock", got)
	}
	s.wantLocksToOutliveTransactions(50)
	s.wantRows(10)
	s.wantSound()
}

// B33: likewise when the work breaks off, by an error, a panic, or a client that leaves. The last is the hard one: then
// database/sql sends ROLLBACK from a goroutine of its own.
func TestTheLockOutlivesABrokenTransaction(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 10)
	// The rollback's reply takes its time, so that a release that does not wait for it is sure to be seen.
	rollbacks := s.instances[0].mysql.On(testenv.Prefix("ROLLBACK"), -1, testenv.Delay(100*time.Millisecond))
	orders := s.instances[0].svc.orders
	rightNumber := orders.NewOrderNo

	orders.NewOrderNo = func() (string, error) { return "", errors.New("no number to be had") }
	wantProblem(t, s.do(create(0, 1001, 1, key("error"), "")), http.StatusInternalServerError, "internal")
	orders.NewOrderNo = func() (string, error) { panic("no number to be had") }
	wantProblem(t, s.do(create(0, 1001, 1, key("panic"), "")), http.StatusInternalServerError, "internal")

	left := create(0, 1001, 1, key("left"), "")
	inside := testenv.NewGate(t)
	var leave context.CancelFunc
	left.ctx, leave = context.WithCancel(t.Context())
	orders.NewOrderNo = func() (string, error) { return "", inside.Enter(context.Background()) }
	gone := s.background(left)
	inside.WaitEntered(t, 1)
	leave()
	rollbacks.Wait(t, 3)
	inside.Open()
	if r := <-gone; r.err == nil {
		t.Errorf("the client was gone, and got %v", r)
	}
	s.untilIdle(t)
	s.wantLocksToOutliveTransactions(3)
	orders.NewOrderNo = rightNumber
	s.finally(t, create(0, 1001, 1, key("left"), ""))
	s.wantRows(1)
	s.wantSound()
}

// wantLocksToOutliveTransactions reads the records of both proxies. It finds the requests by their Idempotency-Key, which
// the business key of these creates contains.
func (s *stack) wantLocksToOutliveTransactions(want int) {
	s.t.Helper()
	released := make(map[string]bool)
	for _, i := range s.instances {
		ends := transactionEnds(i.mysql.Log())
		for _, e := range i.redis.Log() {
			k, ok := releasedLock(e.Cmd)
			if !ok {
				continue
			}
			released[k] = true
			if len(ends[k]) == 0 {
				s.t.Errorf("the lock of %s has no transaction", k)
			}
			for _, end := range ends[k] {
				if end.Replied.IsZero() || e.Arrived.Before(end.Replied) {
					s.t.Errorf("the lock of %s was released %v before the reply to %s", k, end.Replied.Sub(e.Arrived), end.Cmd)
				}
			}
		}
	}
	if len(released) != want {
		s.t.Errorf("%d locks were released, want %d", len(released), want)
	}
}

// transactionEnds returns, for each Idempotency-Key, the ends of the transactions that claimed it.
func transactionEnds(log []testenv.Event) map[string][]testenv.Event {
	const testKey = "'test-key-"
	ends, open := make(map[string][]testenv.Event), make(map[int]string)
	for _, e := range log {
		switch {
		case strings.Contains(e.Cmd, "INSERT INTO t_idempotency_key"):
			_, after, _ := strings.Cut(e.Cmd, testKey)
			k, _, _ := strings.Cut(after, "'")
			open[e.Conn] = k
		case e.Cmd == "COMMIT", e.Cmd == "ROLLBACK":
			if k := open[e.Conn]; k != "" {
				ends[k] = append(ends[k], e)
			}
			delete(open, e.Conn)
		}
	}
	return ends
}

// releasedLock recognises the release of a lock, which alone has no argument behind the owner, and returns the key as
// transactionEnds does.
func releasedLock(cmd string) (string, bool) {
	_, args, ok := strings.Cut(cmd, " 1 oncepay:lock:{")
	words := strings.Fields(args)
	if !ok || len(words) != 2 {
		return "", false
	}
	_, k, _ := strings.Cut(strings.TrimSuffix(words[0], "}"), ":test-key-")
	return k, true
}
