package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/oncepay/internal/bizkey"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

// B43: fifty clients insert neighbouring keys and causes, in random order. All go through, with few repeats of a
// transaction, as plain inserts at READ COMMITTED lock no gaps.
func TestNeighbouringInsertsDoNotLockEachOtherOut(t *testing.T) {
	s := newStack(t)
	const clients, each = 50, 10
	for i := range clients {
		s.sku(int64(1+i), 1999, 0)
	}
	order := rand.Perm(clients * each)
	testenv.Together(clients, func(client int) {
		for _, n := range order[client*each : (client+1)*each] {
			if r := s.do(on(n, moveStock(int64(1+client), 1, key("%06d", n)))); r.status != http.StatusCreated {
				t.Errorf("movement %d: %v", n, r)
			}
		}
	})
	if n := s.count("SELECT COUNT(*) FROM t_stock_movement WHERE kind = 'adjust'"); n != clients*each {
		t.Errorf("%d movements, want %d", n, clients*each)
	}
	for _, i := range s.instances {
		if n := i.deadlocks(t); n > clients*each/20 {
			t.Errorf("%d transactions deadlocked", n)
		}
	}
	s.wantSound()
}

// deadlocks is how many transactions an instance has run again because of a deadlock.
func (i *instance) deadlocks(t *testing.T) int {
	t.Helper()
	families, err := i.metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "tx_retries_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == "deadlock" {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

// B44: with Redis down, fifty at once for each fact that is to be there once: one row, and everybody gets its result.
func TestEachFactIsThereOnce(t *testing.T) {
	s := newStack(t, "DISABLE_GUARDS=idempotency_key")
	s.shop(1000)
	s.couponSale("coupons", 10, 100)
	s.earn(1005, 300)
	token, orderNo := s.token(1002), s.order(1003, 1)
	disturb(t, s, redisDown)
	for name, fact := range map[string]struct {
		call func(i int) call
		rows string
	}{
		"order per biz_token, activity": {func(i int) call { return inSale(i, fmt.Sprint(i)) }, "t_order WHERE activity_id = 'sale'"},
		"order per biz_token, form":     {func(i int) call { return create(i, 1002, 1, key("%d", i), token) }, "t_order WHERE user_id = 1002"},
		"order per biz_token, key":      {func(i int) call { return create(i, 1004, 1, key("K"), "") }, "t_order WHERE user_id = 1004"},
		"movement per cause and kind":   {func(i int) call { return on(i, moveStock(1, 1, key("K"))) }, "t_stock_movement WHERE kind = 'adjust'"},
		"move per order and version":    {func(i int) call { return on(i, s.step(1003, orderNo, "cancel", "")) }, "t_order_history WHERE to_status = 4"},
		"coupon per user and activity":  {func(i int) call { return claim(i, 1005, "coupons", key("%d", i)) }, "t_coupon WHERE activity_id = 'coupons'"},
		"redemption per key":            {func(i int) call { return redeem(i, 1005, "coupons", key("K")) }, "t_point_entry WHERE kind = 'redeem'"},
		"coupon per redemption":         {func(i int) call { return redeem(i, 1005, "coupons", key("K")) }, "t_coupon WHERE activity_id = ''"},
		"message per move":              {func(i int) call { return on(i, s.step(1003, orderNo, "cancel", "")) }, "t_outbox WHERE topic = 'order.cancelled'"},
	} {
		replies := s.all(50, fact.call)
		for _, r := range replies {
			if r.status >= http.StatusMultipleChoices || r.field("order_no") != replies[0].field("order_no") || r.field("cause") != replies[0].field("cause") || grantOf(r) != grantOf(replies[0]) {
				t.Errorf("%s: got %v, another got %v", name, r, replies[0])
			}
		}
		if n := s.count("SELECT COUNT(*) FROM " + fact.rows); n != 1 {
			t.Errorf("%s: %d rows", name, n)
		}
	}
	s.wantSound()
}

// B45: under REPEATABLE READ, the server's default, a transaction that has read before cannot see the row that its own
// insert was refused for: the article's advice to read again there fails. The service forces READ COMMITTED, and reads
// after the rollback.
func TestTheWinnersOrderIsFoundAfterTheRollback(t *testing.T) {
	dsn := testenv.Database(t)
	s := newStackOn(t, dsn, testenv.RedisURL(t), "DISABLE_GUARDS=lock,idempotency_key")
	s.shop(1000)
	gate := testenv.NewGate(t)
	s.instances[0].mysql.On(testenv.Contains("INSERT INTO t_order ("), 1, testenv.Hold(gate))
	late := s.background(inSale(0, "late")) // has read the goods, the activity, and that there is no order
	gate.WaitEntered(t, 1)
	tx := article(t, dsn)
	winner := s.must(http.StatusCreated, inSale(1, "winner"))
	gate.Open()
	wantOrder(t, <-late, winner.field("order_no"))
	if n := s.hits("unique_index", "order.create", "replayed"); n != 1 {
		t.Errorf("the index stopped %d requests; want the late one", n)
	}

	bizToken := bizkey.Build("o1:a", "1001", "1", "sale", "1")
	_, err := tx.ExecContext(t.Context(), `
		INSERT INTO t_order (order_no, user_id, sku_id, activity_id, biz_token, status, version, quantity, amount, currency, expires_at, create_time, update_time)
		VALUES ('x', 1001, 1, 'sale', ?, 0, 1, 1, 1, 'CNY', NOW(), NOW(), NOW())`, bizToken)
	if !mysqldb.IsDuplicate(err, "uk_biz_token") {
		t.Errorf("the article's insert: %v; want a duplicate", err)
	}
	var id int64
	const look = "SELECT id FROM t_order WHERE biz_token = ?"
	if err := tx.QueryRowContext(t.Context(), look, bizToken).Scan(&id); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("the article's second look, in its transaction: %d, %v; if it finds the row, this test shows nothing", id, err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := s.db.QueryRow(look, bizToken).Scan(&id); err != nil {
		t.Errorf("after the rollback: %v", err)
	}
	s.wantRows(1)
	s.wantSound()
}

// article begins a transaction the way the article has it, on a connection without our settings, and reads the orders.
func article(t *testing.T, dsn string) *sql.Tx {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() }) // ended already, if all went well
	var n int
	if err := tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM t_order").Scan(&n); err != nil || n != 0 {
		t.Fatalf("%d orders, %v; want none yet", n, err)
	}
	return tx
}

// B51: an action's rows, its key's record included, go through one transaction on one connection, and nothing is written
// outside it. The kind of movement is part of what is unique, so two steps of one order do not take each other for repeats.
func TestEachActionIsOneTransaction(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	s.couponSale("sale", 10, 100)
	s.earn(1002, 100)
	orderNo := s.order(1002, 1)
	for name, c := range map[string]call{
		"create": create(0, 1001, 1, key("create"), s.token(1001)),
		"coupon": withCoupon(create(0, 1001, 1, key("coupon"), ""), s.coupon(1001, "sale")),
		"claim":  claim(0, 1002, "sale", key("claim")),
		"redeem": redeem(0, 1002, "sale", key("redeem")),
		"code":   makeCode(0, "sale", key("code")),
		"cancel": s.step(1002, orderNo, "cancel", key("cancel")),
		"stock":  moveStock(1, 1, key("stock")),
	} {
		proxy := s.instances[0].mysql
		proxy.ClearLog()
		if r := s.do(c); r.status >= http.StatusMultipleChoices {
			t.Fatalf("%s: %v", name, r)
		}
		begins, commits, writes, inside := 0, 0, 0, 0
		for _, e := range proxy.Log() {
			switch verb, _, _ := strings.Cut(strings.TrimSpace(e.Cmd), " "); verb {
			case "START":
				begins, inside = begins+1, e.Conn
			case "COMMIT":
				commits, inside = commits+1, 0
			case "INSERT", "UPDATE", "DELETE":
				if writes++; e.Conn != inside {
					t.Errorf("%s: outside the transaction: %s", name, e.Cmd)
				}
			}
		}
		// The key's record, its answer, a movement and a figure at the least.
		if begins != 1 || commits != 1 || writes < 4 {
			t.Errorf("%s: %d begun, %d committed, %d writes; want one, one and at least four", name, begins, commits, writes)
		}
	}
	if n := s.count("SELECT COUNT(*) FROM t_stock_movement WHERE cause = ?", bizkey.Build("o1", orderNo)); n != 2 {
		t.Errorf("the cancelled order has %d movements, want reserve and release", n)
	}
	s.wantSound()
}

// B52: what one instance has answered, the other one knows at once.
func TestTheOtherInstanceSeesItAtOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	for i := range 20 {
		user := int64(1001 + i)
		made := s.must(http.StatusCreated, create(i, user, 1, key("create"), ""))
		path := "/v1/orders/" + made.field("order_no")
		read := func(p string) reply {
			return s.must(http.StatusOK, call{on: i + 1, as: buyer(user), path: p})
		}
		if r := read(path); string(r.body) != string(made.body) {
			t.Errorf("the other instance shows %v, made was %v", r, made)
		}
		if r := read("/v1/orders"); !strings.Contains(string(r.body), made.field("order_no")) {
			t.Errorf("the list lacks %s: %v", made.field("order_no"), r)
		}
		if r := read("/v1/idempotency-keys/" + key("create")); r.field("state") != "done" {
			t.Errorf("the key: %v", r)
		}
		wantReplay(t, s.do(create(i+1, user, 1, key("create"), "")), made)
		ended := s.must(http.StatusOK, on(i, s.step(user, made.field("order_no"), "cancel", "")))
		if r := read(path); string(r.body) != string(ended.body) || r.field("status") != "CANCELLED" {
			t.Errorf("the other instance shows %v, cancelled was %v", r, ended)
		}
		if r := s.must(http.StatusOK, on(i+1, s.step(user, made.field("order_no"), "cancel", ""))); string(r.body) != string(ended.body) {
			t.Errorf("cancelled again there: %v, want %v", r, ended)
		}
	}
	s.wantRows(20)
	s.wantSound()
}

// B55: every statement that the service sends, with the values it sends, finds its rows by an index.
func TestEveryLookUpUsesAnIndex(t *testing.T) {
	s := newStack(t)
	s.shop(1000)
	for i := range 60 { // with a few rows the optimizer would rather scan
		s.must(http.StatusCreated, inActivity(create(i, int64(2001+i), 1, key("fill"), ""), "sale"))
		s.sku(int64(100+i), 1, 1)
		s.activity(fmt.Sprint("other-", i))
	}
	for _, table := range []string{"t_order", "t_order_history", "t_idempotency_key", "t_stock_movement", "t_sku", "t_activity"} {
		if _, err := s.db.Exec("ANALYZE TABLE " + table); err != nil {
			t.Fatal(err)
		}
	}
	proxy := s.instances[0].mysql
	proxy.ClearLog()
	orderNo := s.must(http.StatusCreated, inSale(0, "K1")).field("order_no")
	s.must(http.StatusCreated, inSale(0, "K2"))
	s.must(http.StatusCreated, create(0, 1001, 1, key("K3"), s.token(1001)))
	s.must(http.StatusCreated, moveStock(1, 1, key("K4")))
	s.must(http.StatusOK, s.step(1001, orderNo, "cancel", ""))
	s.must(http.StatusOK, s.step(1001, orderNo, "cancel", ""))
	wantProblem(t, s.do(s.step(1001, orderNo, "finish", "")), http.StatusConflict, "order_state_illegal")
	s.must(http.StatusOK, call{as: buyer(1001), path: "/v1/orders/" + orderNo})
	s.must(http.StatusOK, call{as: buyer(1001), path: "/v1/orders"})
	s.must(http.StatusOK, call{as: operator, path: "/v1/orders?limit=10"})
	s.must(http.StatusOK, call{as: operator, path: "/v1/ops/skus/1"})
	looked := make(map[string]bool)
	for _, e := range proxy.Log() {
		statement := strings.TrimSpace(e.Cmd)
		if where := regexp.MustCompile(`(?s)^(SELECT|UPDATE|DELETE)\b.*\bFROM t_|^UPDATE t_`); !where.MatchString(statement) {
			continue
		}
		looked[regexp.MustCompile(`'[^']*'|\d+`).ReplaceAllString(statement, "?")] = true
		if index := s.explain(t, statement); index == "" {
			t.Errorf("no index for: %s", statement)
		}
	}
	if len(looked) < 8 {
		t.Errorf("%d different statements were looked at: %v", len(looked), looked)
	}
	s.wantSound()
}

// explain returns the index that a statement on one table uses. Servers differ in the columns of EXPLAIN.
func (s *stack) explain(t *testing.T, statement string) string {
	t.Helper()
	rows, err := s.db.QueryContext(t.Context(), "EXPLAIN "+statement)
	if err != nil {
		t.Fatalf("EXPLAIN %s: %v", statement, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	values, dest := make([]sql.NullString, len(columns)), make([]any, len(columns))
	for i := range values {
		dest[i] = &values[i]
	}
	if !rows.Next() {
		t.Fatalf("EXPLAIN %s: nothing, %v", statement, rows.Err())
	}
	if err := rows.Scan(dest...); err != nil {
		t.Fatal(err)
	}
	return values[slices.Index(columns, "key")].String
}
