package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/bizkey"
	"example.com/oncepay/internal/testenv"
)

// deadlock is a step of an action, and how another transaction stands in its way: it has the row that the step asks for,
// and then asks for the key's record, which the action has.
type deadlock struct {
	step  string
	block string // with the order's number for each ?
}

func createDeadlocks(bizToken string) []deadlock {
	return []deadlock{
		{"INSERT INTO t_order (", `INSERT INTO t_order (order_no, user_id, sku_id, biz_token, status, version, quantity, amount, currency, expires_at, create_time, update_time)
			VALUES (REVERSE(?), 1, 1, '` + bizToken + `', 0, 1, 1, 1, 'CNY', NOW(), NOW(), NOW())`},
		{"INSERT INTO t_order_history", `INSERT INTO t_order_history (order_no, version, to_status, cause, actor, create_time) VALUES (?, 1, 0, '', '', NOW())`},
		{"INSERT INTO t_stock_movement", `INSERT INTO t_stock_movement (cause, kind, sku_id, available, reserved, sold, create_time) VALUES (CONCAT('o1:', ?), 'reserve', 1, 0, 0, 0, NOW())`},
		{"UPDATE t_sku", `UPDATE t_sku SET title = ? WHERE sku_id = 1`},
		{"INSERT INTO t_outbox", `INSERT INTO t_outbox (msg_id, topic, partition_key, version, payload, create_time) VALUES (CONCAT('m1:o:', ?, ':1'), '', '', 1, '', NOW())`},
	}
}

func cancelDeadlocks() []deadlock {
	return []deadlock{
		{"UPDATE t_order", `UPDATE t_order SET quantity = quantity + 1 WHERE order_no = ?`},
		{"INSERT INTO t_order_history", `INSERT INTO t_order_history (order_no, version, to_status, cause, actor, create_time) VALUES (?, 2, 0, '', '', NOW())`},
		{"INSERT INTO t_stock_movement", `INSERT INTO t_stock_movement (cause, kind, sku_id, available, reserved, sold, create_time) VALUES (CONCAT('o1:', ?), 'release', 1, 0, 0, 0, NOW())`},
		{"UPDATE t_sku", `UPDATE t_sku SET title = ? WHERE sku_id = 1`},
		{"INSERT INTO t_outbox", `INSERT INTO t_outbox (msg_id, topic, partition_key, version, payload, create_time) VALUES (CONCAT('m1:o:', ?, ':2'), '', '', 1, '', NOW())`},
	}
}

// B47: each step of create and of cancel becomes a deadlock's victim (1213). Nothing but ROLLBACK leaves on that transaction
// any more, the whole of it runs again, and the rows are all there, once.
func TestADeadlockInAnyStepRunsTheWholeAgain(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	orders := s.instances[0].svc.orders
	random := orders.NewOrderNo
	made, cancelled := 0, 0
	for i := range createDeadlocks("") {
		c := create(0, 1001, 1, key("create-%d", i), "")
		orderNo := fmt.Sprintf("%032x", 0xabc0+i)
		orders.NewOrderNo = func() (string, error) { return orderNo, nil }
		r := s.victim(t, c, orderNo, createDeadlocks(bizkey.Build("o1:k", "1001", c.key))[i])
		wantOrder(t, r, orderNo)
		wantReplay(t, s.do(on(1, c)), r)
		made++
	}
	orders.NewOrderNo = random
	for i, d := range cancelDeadlocks() {
		orderNo := s.order(1002, 1)
		c := s.step(1002, orderNo, "cancel", key("cancel-%d", i))
		r := s.victim(t, c, orderNo, d)
		if r.status != http.StatusOK || r.field("status") != "CANCELLED" {
			t.Errorf("%s: %v", d.step, r)
		}
		wantReplay(t, s.do(on(1, c)), r)
		made, cancelled = made+1, cancelled+1
	}
	if n := s.instances[0].deadlocks(t); n != made {
		t.Errorf("%d deadlocks were counted, want one for each of %d actions", n, made)
	}
	s.wantOrders(made, cancelled)
	s.wantSound()
}

// victim runs c so that it deadlocks in a step, and returns its answer.
func (s *stack) victim(t *testing.T, c call, orderNo string, d deadlock) reply {
	t.Helper()
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	exec := func(query string, args ...any) error {
		_, err := tx.ExecContext(t.Context(), query, args...)
		return err
	}
	// A hundred rows make this side the one that is dear to undo, so that InnoDB picks the other as the victim.
	fillers := make([]string, 100)
	for i := range fillers {
		fillers[i] = fmt.Sprintf("('filler-%d', '', NOW(), NOW(), NOW(), NOW())", i)
	}
	if err := exec("INSERT INTO t_activity (activity_id, title, starts_at, ends_at, create_time, update_time) VALUES " + strings.Join(fillers, ",")); err != nil {
		t.Fatal(err)
	}
	if err := exec(d.block, orderNo); err != nil {
		t.Fatal(err)
	}
	proxy, gate := s.instances[0].mysql, testenv.NewGate(t)
	proxy.ClearLog()
	proxy.On(testenv.Contains(d.step), 1, testenv.Hold(gate))
	done := s.background(c)
	gate.WaitEntered(t, 1)
	crossed := make(chan error, 1)
	go func() {
		crossed <- exec(`INSERT INTO t_idempotency_key (caller_id, idem_key, operation, fingerprint, state, owner, lease_until, create_time, expires_at)
			VALUES (?, ?, '', '', 0, '', NOW(), NOW(), NOW())`, c.as.UserID, c.key)
	}()
	gate.Open()
	if err := <-crossed; err != nil {
		t.Fatalf("%s: the wrong side was the victim: %v", d.step, err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	r := <-done
	if next := following(proxy.Log(), d.step); next != "ROLLBACK" {
		t.Errorf("%s became the victim, and next on its connection was %q", d.step, next)
	}
	return r
}

// following returns the command that came on the same connection behind the first one that contains text.
func following(log []testenv.Event, text string) string {
	conn := 0
	for _, e := range log {
		switch {
		case conn == 0 && strings.Contains(e.Cmd, text):
			conn = e.Conn
		case conn != 0 && e.Conn == conn:
			return e.Cmd
		}
	}
	return ""
}

// B48: what does not fit is refused as what it is, and nothing is bent to fit.
func TestWhatDoesNotFitIsRefused(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	longest, tooLong := strings.Repeat("😀", 255), strings.Repeat("😀", 256)
	move := func(sku int64, delta, reason string) call {
		c := moveStock(sku, 0, key("K%d", sku))
		c.body = fmt.Sprintf(`{"delta":%s,"reason":"%s"}`, delta, reason)
		return c
	}
	wantProblem(t, s.do(move(1, "1", tooLong)), http.StatusBadRequest, "field_invalid")
	wantProblem(t, s.do(move(1, "2147483648", "x")), http.StatusBadRequest, "field_invalid")
	wantProblem(t, s.do(move(1, "null", "x")), http.StatusBadRequest, "field_invalid")
	wantProblem(t, s.do(move(9, "1", "x")), http.StatusNotFound, "sku_not_found")
	for _, last := range []string{"a", "b"} { // one character too long, and different there only
		key256 := strings.Repeat("k", 255) + last
		wantProblem(t, s.do(create(0, 1001, 1, key256, "")), http.StatusBadRequest, "idempotency_key_invalid")
		wantProblem(t, s.do(inActivity(create(0, 1001, 1, key("K"), ""), strings.Repeat("a", 64)+last)), http.StatusBadRequest, "activity_id_invalid")
		wantProblem(t, s.do(call{as: operator, method: http.MethodPut, path: "/v1/ops/activities/" + strings.Repeat("a", 64) + last,
			body: `{"title":"x","starts_at":"2000-01-01T00:00:00Z","ends_at":"2999-01-01T00:00:00Z"}`}), http.StatusBadRequest, "activity_id_invalid")
	}
	if n := s.count("SELECT COUNT(*) FROM t_idempotency_key") + s.count("SELECT COUNT(*) FROM t_activity") + s.count("SELECT COUNT(*) FROM t_stock_movement WHERE kind = 'adjust'"); n != 0 {
		t.Errorf("%d rows are there", n)
	}
	if r := s.must(http.StatusCreated, move(1, "1", longest)); r.field("reason") != longest ||
		s.count("SELECT COUNT(*) FROM t_stock_movement WHERE reason = ?", longest) != 1 {
		t.Errorf("255 characters are stored as %v", r)
	}
	s.wantRows(0)
	s.wantSound()
}

// B49: zero changed rows mean different things, told apart by another look: done before, not possible, not there, or
// overtaken.
func TestZeroRowsAreToldApart(t *testing.T) {
	s := newStack(t)
	for range 2 { // equal values change no row, and match one
		if r := s.do(call{as: operator, method: http.MethodPut, path: "/v1/ops/skus/1", body: `{"title":"same","price":1999,"currency":"CNY","stock":10}`}); r.status > http.StatusCreated {
			t.Errorf("equal values: %v", r)
		}
	}
	cancelled := s.order(1001, 1)
	first := s.must(http.StatusOK, s.step(1001, cancelled, "cancel", ""))
	if again := s.must(http.StatusOK, on(1, s.step(1001, cancelled, "cancel", ""))); string(again.body) != string(first.body) {
		t.Errorf("done before: %v, want %v", again, first)
	}
	wantProblem(t, s.do(s.step(1001, cancelled, "ship", "")), http.StatusConflict, "order_state_illegal")
	wantProblem(t, s.do(s.step(1001, strings.Repeat("0", 32), "cancel", "")), http.StatusNotFound, "order_not_found")
	wantProblem(t, s.do(s.step(1002, cancelled, "cancel", "")), http.StatusNotFound, "order_not_found")

	raced := s.order(1001, 1)
	gate := testenv.NewGate(t)
	update := s.instances[0].mysql.On(testenv.Contains("UPDATE t_order"), 1, testenv.Hold(gate))
	late := s.background(s.step(1001, raced, "cancel", ""))
	gate.WaitEntered(t, 1)
	winner := s.must(http.StatusOK, on(1, s.step(1001, raced, "cancel", "")))
	gate.Open()
	if r := <-late; r.status != http.StatusOK || string(r.body) != string(winner.body) || update.Hits() != 1 {
		t.Errorf("overtaken: %v, want %v", r, winner)
	}
	s.wantOrders(2, 2)
	s.wantSound()
}

// B54: times are cut to what the database keeps, so that nothing that was stored lies in the future, a stored time equals
// itself, and limits hold to the microsecond.
func TestTimesAreCutNotRounded(t *testing.T) {
	if now := realWorld().now(); !now.Equal(now.Truncate(time.Microsecond)) || now.Location() != time.UTC {
		t.Errorf("the real clock says %v", now)
	}
	s := newStack(t)
	s.sku(1, 1999, 1000)
	stop := func(at time.Time) {
		for _, i := range s.instances {
			i.clock.stop(at)
		}
	}
	for n, fraction := range []time.Duration{600 * time.Millisecond, 999_999_600 * time.Nanosecond} {
		user := int64(1001 + n)
		at := time.Now().Truncate(time.Second).Add(fraction).UTC()
		cut := at.Truncate(time.Microsecond)
		limit := cut.Add(s.instances[0].svc.cfg.OrderPayTimeout)
		stop(at)
		r := s.must(http.StatusCreated, create(0, user, 1, key("K"), ""))
		if r.field("created_at") != cut.Format(time.RFC3339Nano) || r.field("expires_at") != limit.Format(time.RFC3339Nano) {
			t.Errorf("made at %v: %v", at, r)
		}
		if n := s.count("SELECT COUNT(*) FROM t_order WHERE create_time = ? AND create_time <= ? AND expires_at = ?", cut, at, limit); n != 1 {
			t.Errorf("%d orders of exactly %v", n, cut)
		}
		s.must(http.StatusOK, s.step(user, r.field("order_no"), "cancel", "")) // at the same moment
		if n := s.count("SELECT COUNT(DISTINCT create_time) * 10 + MAX(version) FROM t_order_history WHERE order_no = ?", r.field("order_no")); n != 12 {
			t.Errorf("the history is %d; want one moment (1) and two versions (2)", n)
		}
		end := cut.Add(s.instances[0].svc.cfg.KeyRetention)
		stop(end.Add(-time.Microsecond))
		s.must(http.StatusOK, call{as: buyer(user), path: "/v1/idempotency-keys/" + key("K")})
		stop(end)
		wantProblem(t, s.lookUp(user, key("K")), http.StatusNotFound, "idempotency_key_not_found")

		sale := fmt.Sprint("sale-", n)
		s.must(http.StatusCreated, call{as: operator, method: http.MethodPut, path: "/v1/ops/activities/" + sale,
			body: fmt.Sprintf(`{"title":"x","starts_at":%q,"ends_at":%q}`, end.Format(time.RFC3339Nano), end.Add(time.Second).Format(time.RFC3339Nano))})
		for i, moment := range []struct {
			at     time.Duration
			status int
		}{{-time.Microsecond, 409}, {0, 201}, {time.Second - time.Microsecond, 201}, {time.Second, 409}} {
			stop(end.Add(moment.at))
			if r := s.do(inActivity(create(0, int64(2001+10*n+i), 1, key("sale"), ""), sale)); r.status != moment.status {
				t.Errorf("%v from the beginning of a second-long sale: %v, want %d", moment.at, r, moment.status)
			}
		}
	}
	s.wantOrders(6, 2)
	s.wantSound()
}
