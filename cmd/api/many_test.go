package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

// manyOrders is small in CI; the run that is shown has 10000: go test ./cmd/api -run ManyPaidOrders -timeout 30m -orders 10000 -v
var manyOrders = flag.Int("orders", 200, "how many orders TestManyPaidOrdersEndExact pays")

// receiver is somebody's endpoint for notifications: it makes one effect for each key, and is as unreliable as a network.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	effects map[string]int // by Idempotency-Key: how often it was called
	calm    atomic.Bool    // no more faults
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{effects: make(map[string]int)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fate := rand.IntN(10)
		if fate < 2 && !r.calm.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		r.mu.Lock()
		r.effects[req.Header.Get("Idempotency-Key")]++
		r.mu.Unlock()
		if fate == 2 && !r.calm.Load() {
			panic(http.ErrAbortHandler) // it took effect, and nobody hears of it
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// consuming keeps two api processes at work on messages and jobs, and kills one of them again and again until stopped.
type consuming struct {
	s     *stack // of its own: the clients' must not change under them
	dsn   string
	env   []string
	alive [2]*exec.Cmd
}

func (c *consuming) start(i int) {
	_, c.alive[i] = c.s.startProcess(c.dsn, c.env...)
}

func (c *consuming) killOne(t *testing.T) {
	i := rand.IntN(2)
	if err := c.alive[i].Process.Kill(); err != nil {
		t.Error(err)
	}
	c.start(i)
}

// Orders are paid and refunded while Redis is flushed, consumers are killed, messages come again and in any order, and the
// endpoint outside fails. Afterwards points, coupons, notifications and the account are exact. B20, B110, B111.
func TestManyPaidOrdersEndExact(t *testing.T) {
	endpoint := newReceiver(t)
	dsn := testenv.Database(t)
	env := []string{"NOTIFY_URL=" + endpoint.URL}
	s := newStackOn(t, dsn, testenv.RedisURL(t), env...)
	s.faults(`{"refund_mode":"auto","auto_refund_ms":1}`)
	n, users := *manyOrders, min(*manyOrders, 500)
	s.sku(1, 12345, int64(3*n))
	s.must(http.StatusCreated, call{as: operator, method: http.MethodPut, path: "/v1/ops/activities/sale", body: fmt.Sprintf(
		`{"title":"sale","starts_at":"2000-01-01T00:00:00Z","ends_at":"2999-01-01T00:00:00Z","coupon":{"template":"t","discount":777,"limit":%d}}`, users)})
	c := &consuming{s: &stack{t: t, db: s.db, redisURL: s.redisURL, channel: s.channel}, dsn: dsn, env: append(env, "MOCKPAY_URL="+s.channel.url)}
	c.start(0)
	c.start(1)

	over := make(chan struct{})
	var chaos, work sync.WaitGroup
	chaos.Go(func() {
		for turn := 0; ; turn++ {
			select {
			case <-over:
				return
			case <-time.After(200 * time.Millisecond): // the pace of the faults; nothing waits for it
			}
			if err := testenv.OpenRedis(t, s.redisURL).FlushAll(context.Background()).Err(); err != nil {
				t.Error(err)
			}
			s.repeatShuffled(50)
			if turn%10 == 5 {
				c.killOne(t)
			}
		}
	})
	var next atomic.Int64
	for range 8 {
		work.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				s.purchase(i, int64(1000+i%users))
			}
		})
	}
	work.Wait()
	close(over)
	chaos.Wait()
	endpoint.calm.Store(true)
	s.settled(t)
	s.wantExact(endpoint)
	s.wantSound()
	t.Logf("%d orders, %d messages, %d of them told to the endpoint in %d calls, %d processes killed", s.count("SELECT COUNT(*) FROM t_order"),
		s.count("SELECT COUNT(*) FROM t_outbox"), len(endpoint.effects), endpoint.calls(), len(c.s.instances)-len(c.alive))
}

// purchase is one person's way: every fifth buyer claims the coupon and uses it, every fourth order is refunded in part, every tenth in
// full, every twentieth is cancelled before it is paid.
func (s *stack) purchase(i int, user int64) {
	id := fmt.Sprintf("%06d", i)
	buy := create(i%2, user, 1, key("order-%s", id), "")
	buy.body = fmt.Sprintf(`{"sku_id":1,"quantity":%d}`, 1+i%3)
	if i%5 == 0 {
		coupon := s.finally(s.t, call{on: i % 2, as: buyer(user), method: http.MethodPost, path: "/v1/activities/sale/coupons", key: key("coupon-%s", id)})
		with := buy
		with.body = fmt.Sprintf(`{"sku_id":1,"quantity":%d,"coupon_no":%q}`, 1+i%3, coupon.field("coupon_no"))
		with.key = key("order-with-%s", id)
		if r := s.do(with); r.status == http.StatusCreated {
			buy = with // else the user's one coupon is in use
		}
	}
	order := s.finally(s.t, buy)
	orderNo := order.field("order_no")
	amount, err := strconv.ParseInt(order.field("amount"), 10, 64)
	if err != nil {
		s.t.Errorf("order %v: %v", order, err)
		return
	}
	if i%20 == 0 {
		s.finally(s.t, s.step(user, orderNo, "cancel", ""))
		return
	}
	payNo := s.finally(s.t, payCall(i%2, user, orderNo, "mockpay", key("pay-%s", id))).field("pay_no")
	s.at(http.MethodPost, "/v1/trades/"+payNo+"/pay?notify=off", "")
	s.notify(i, s.noticeOf("payment.succeeded", payNo))
	switch {
	case i%10 == 1:
		s.finally(s.t, refundCall(i%2, user, orderNo, amount, key("refund-%s", id)))
	case i%4 == 1:
		s.finally(s.t, refundCall(i%2, user, orderNo, 1+amount/int64(3+i%7), key("refund-%s", id)))
	}
}

// repeatShuffled sends messages of the past once more, in any order.
func (s *stack) repeatShuffled(n int) {
	ids, err := mysqldb.Collect(func(row mysqldb.Scanner) (id string, err error) { return id, row.Scan(&id) })(
		s.db.Query("SELECT msg_id FROM t_outbox ORDER BY RAND() LIMIT ?", n))
	if err != nil {
		s.t.Error(err)
		return
	}
	list, err := outbox.Load(context.Background(), s.db, ids...)
	if err != nil {
		s.t.Error(err)
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, m := range list {
		_ = s.instances[0].svc.broker.Publish(outbox.Shard(m.Key), []outbox.Stored{m}) // lost, if Redis is just being flushed
	}
}

// settled waits until every refund is decided and every message is consumed. The clock of the test's own instances runs ahead, so
// that pauses between tries are over; the processes go on as well.
func (s *stack) settled(t *testing.T) {
	testenv.Eventually(t, 4*time.Minute, "everything is settled", func() error {
		s.advance(time.Minute)
		s.round(0, "refunds.send")
		s.consume()
		open := s.count("SELECT COUNT(*) FROM t_refund WHERE status = 0")
		waiting := s.count(`SELECT COUNT(*) FROM t_outbox x JOIN t_subscription s ON s.topic = x.topic
			LEFT JOIN t_message_dedup d ON d.consumer = s.consumer AND d.msg_id = x.msg_id WHERE d.id IS NULL OR d.status <> 1`)
		if open+waiting > 0 {
			return fmt.Errorf("%d refunds, %d messages", open, waiting)
		}
		return nil
	})
}

func (r *receiver) calls() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, times := range r.effects {
		n += times
	}
	return n
}

// wantExact compares everything that was granted or told with what the orders say.
func (s *stack) wantExact(endpoint *receiver) {
	s.t.Helper()
	paid := s.count("SELECT COUNT(*) FROM t_order WHERE paid_at IS NOT NULL")
	if endpoint.mu.Lock(); len(endpoint.effects) != paid || endpoint.effects[""] != 0 {
		s.t.Errorf("%d orders were told of, want %d", len(endpoint.effects), paid)
	}
	endpoint.mu.Unlock()
	for what, query := range map[string]string{
		"users whose points are not what their orders earn": `
			SELECT COUNT(*) FROM (SELECT user_id, SUM((amount - refunded_amount) DIV 100) AS earned FROM t_order WHERE paid_at IS NOT NULL GROUP BY user_id) o
			LEFT JOIN t_point_account a ON a.user_id = o.user_id WHERE COALESCE(a.balance, 0) <> o.earned`,
		"accounts of nobody who paid": `
			SELECT COUNT(*) FROM t_point_account a WHERE a.balance <> 0 AND NOT EXISTS (SELECT 1 FROM t_order o WHERE o.user_id = a.user_id AND o.paid_at IS NOT NULL)`,
		"orders that earned twice": `
			SELECT COUNT(*) FROM (SELECT order_no FROM t_point_entry WHERE delta > 0 GROUP BY order_no HAVING COUNT(*) > 1) x`,
		"users with two coupons": `
			SELECT COUNT(*) FROM (SELECT user_id FROM t_coupon GROUP BY user_id HAVING COUNT(*) > 1) x`,
		"coupons in use that no living order has, or the other way round": `
			SELECT (SELECT COUNT(*) FROM t_coupon WHERE status = 1) - (SELECT COUNT(DISTINCT coupon_no) FROM t_order WHERE coupon_no <> '' AND status NOT IN (4, 6))`,
		"minor units that the account is off": `
			SELECT COALESCE((SELECT SUM(amount) FROM t_ledger_entry WHERE account = 'channel:mockpay'), 0)
				- (SELECT COALESCE(SUM(amount - refunded_amount), 0) FROM t_order WHERE paid_at IS NOT NULL)`,
		"orders without their refund": "SELECT COUNT(*) FROM t_refund WHERE status <> 1",
		"dead letters":                "SELECT COUNT(*) FROM t_message_dedup WHERE status <> 1",
	} {
		if n := s.count(query); n != 0 {
			s.t.Errorf("%d %s", n, what)
		}
	}
	if s.count("SELECT COUNT(*) FROM t_order WHERE coupon_no <> ''") == 0 || s.count("SELECT COUNT(*) FROM t_refund") == 0 || paid == 0 {
		s.t.Error("the stories did not happen")
	}
}
