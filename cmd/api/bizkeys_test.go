package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"example.com/oncepay/internal/testenv"
)

// B21: what differs only in case is different, for one user and for two.
func TestCaseMatters(t *testing.T) {
	s := newStack(t, "DISABLE_GUARDS=token") // so that both of a pair of tokens pass; what is asked here is the business key
	s.sku(1, 1999, 1000)
	s.activity("sale")
	s.activity("SALE")
	var replies []reply
	for _, user := range []int64{1001, 1002} {
		for _, spelling := range []string{"abc", "ABC", "aBc"} {
			replies = append(replies,
				s.do(create(0, user, 1, key("%s", spelling), "")),
				s.do(create(1, user, 1, key("token-%s", spelling), spelling)))
		}
		for _, activity := range []string{"sale", "SALE"} {
			replies = append(replies, s.do(inActivity(create(0, user, 1, key("activity-%s", activity), ""), activity)))
		}
	}
	for _, r := range replies {
		if r.status != http.StatusCreated || r.replayed != "false" {
			t.Errorf("got %v; want an order of its own", r)
		}
	}
	s.wantRows(len(replies))
	s.wantSound()
}

// B21: characters outside a field's alphabet are refused, never folded or trimmed.
func TestForeignLettersAreRefused(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	for _, id := range []string{"café", "straße", "Ａ", "a ", " a", "a\u0000", "a:b", "{a}", "a/b", "a'b", ""} {
		with := func(field string) call {
			c := create(0, 1001, 1, key("K1"), "")
			c.body = fmt.Sprintf(`{"sku_id":1,"quantity":1,"%s":%s}`, field, strings.ReplaceAll(fmt.Sprintf("%q", id), `\x00`, `\u0000`))
			return c
		}
		wantProblem(t, s.do(with("activity_id")), http.StatusBadRequest, "activity_id_invalid")
		wantProblem(t, s.do(with("coupon_no")), http.StatusBadRequest, "coupon_no_invalid")
		if strings.ContainsAny(id, "\x00") {
			continue // no header can carry it
		}
		long := create(0, 1001, 1, "", "")
		long.header = http.Header{"Idempotency-Key": {strings.Repeat("k", 20) + "é" + id}}
		wantProblem(t, s.do(long), http.StatusBadRequest, "idempotency_key_invalid")
	}
	for _, id := range []string{"café", "Ａ", "a:b", "{a}", "a.b"} {
		token := create(0, 1001, 1, key("K1"), "")
		token.header = http.Header{"X-Submit-Token": {id}}
		wantProblem(t, s.do(token), http.StatusBadRequest, "submit_token_invalid")
	}
	s.wantRows(0)
	s.wantSound()
}

// B21: every text column of a unique index compares bytes.
func TestEveryKeyColumnHasABinaryCollation(t *testing.T) {
	s := newStack(t)
	rows, err := s.db.Query(`
		SELECT c.table_name, c.column_name, c.collation_name
		FROM information_schema.columns c
		JOIN information_schema.statistics i ON i.table_schema = c.table_schema AND i.table_name = c.table_name AND i.column_name = c.column_name
		WHERE c.table_schema = DATABASE() AND i.non_unique = 0 AND c.collation_name IS NOT NULL AND c.table_name LIKE 't\_%'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	checked := 0
	for rows.Next() {
		var table, column, collation string
		if err := rows.Scan(&table, &column, &collation); err != nil {
			t.Fatal(err)
		}
		checked++
		if !strings.HasSuffix(collation, "_bin") {
			t.Errorf("%s.%s has collation %s", table, column, collation)
		}
	}
	if err := rows.Err(); err != nil || checked < 7 {
		t.Errorf("looked at %d key columns, %v; there are at least 7", checked, err)
	}
	s.wantSound()
}

// B23: parts that could run into each other name different actions, or are refused.
func TestKeyPartsDoNotRunIntoEachOther(t *testing.T) {
	s := newStack(t)
	for _, sku := range []int64{234, 34, 4} {
		s.sku(sku, 1999, 1000)
	}
	for _, id := range []string{"1", "4-1", "34_1"} {
		s.activity(id)
	}
	buys := []call{
		inActivity(create(0, 1, 234, key("K1"), ""), "1"),
		inActivity(create(0, 12, 34, key("K2"), ""), "1"),
		inActivity(create(0, 123, 4, key("K3"), ""), "1"),
		inActivity(create(0, 1, 234, key("K4"), ""), "4-1"),
		inActivity(create(0, 1, 34, key("K5"), ""), "34_1"),
		create(0, 1, 234, strings.Repeat("1", 20), ""),
		create(0, 11, 234, strings.Repeat("1", 20), ""),
		create(0, 1, 234, strings.Repeat("1", 21), ""),
		create(0, 1, 234, strings.Repeat("1", 19)+":1", ""),
	}
	var replies []reply
	for _, c := range buys {
		replies = append(replies, s.do(c))
	}
	if orders := distinct(replies, "order_no"); len(orders) != len(buys) {
		t.Errorf("%d orders of %d purchases: %v", len(orders), len(buys), tally(replies))
	}
	text := create(0, 1, 1, key("K6"), "")
	text.body = `{"sku_id":"23_4","quantity":1}`
	wantProblem(t, s.do(text), http.StatusBadRequest, "body_invalid")
	wantProblem(t, s.do(moveStock(1, 1, "")), http.StatusNotFound, "sku_not_found")
	path := moveStock(1, 1, "")
	path.path = "/v1/ops/skus/23_4/stock-movements"
	wantProblem(t, s.do(path), http.StatusBadRequest, "sku_id_invalid")
	s.wantRows(len(buys))
	s.wantSound()
}

// B27: what another build on the same servers must agree on, as it goes over the wire. A changed value needs a new version
// prefix and a migration.
func TestKeysArePinnedAsStored(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	s.activity("sale")
	redis := s.instances[0].redis
	orders := []string{
		s.must(http.StatusCreated, create(0, 1001, 1, "pinned-key-0000000001", "")).field("order_no"),
		s.must(http.StatusCreated, inActivity(create(0, 1001, 1, "pinned-key-0000000002", ""), "sale")).field("order_no"),
	}
	token := s.token(1001)
	s.must(http.StatusCreated, create(0, 1001, 1, "pinned-key-0000000003", token))
	s.must(http.StatusCreated, moveStock(1, 5, "pinned-key-0000000004"))

	for query, want := range map[string][]string{
		"SELECT biz_token FROM t_order": {"o1:k:1001:pinned-key-0000000001", "o1:a:1001:1:sale:1", "o1:t:1001:" + token},
		"SELECT fingerprint FROM t_idempotency_key": { // the first and the third are the same request
			"v1:4956d3ea1fa284ecf67f76c911e52c1d51c8a52a0050a96206f3affcaacf08f0",
			"v1:bdb4cb1c1eea4ff525c0310488cb09316e0638d8612765f3ae6e3ea1fbf2216a",
			"v1:4956d3ea1fa284ecf67f76c911e52c1d51c8a52a0050a96206f3affcaacf08f0",
			"v1:8610164ed4b71b307f8d56e8e2a73f83099cc01ce82c813738fec2180598cfca",
		},
		"SELECT msg_id FROM t_outbox LIMIT 2":                               {"m1:o:" + orders[0] + ":1", "m1:o:" + orders[1] + ":1"},
		"SELECT cause FROM t_stock_movement WHERE kind = 'reserve' LIMIT 2": {"o1:" + orders[0], "o1:" + orders[1]},
		"SELECT cause FROM t_stock_movement WHERE kind = 'adjust'":          {"s1:k:1:pinned-key-0000000004"},
	} {
		if got := s.column(query); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s:\n got %q\nwant %q", query, got, want)
		}
	}
	for _, want := range []string{
		" oncepay:lock:{o1:k:1001:pinned-key-0000000001} ",
		" oncepay:lock:{o1:a:1001:1:sale} ",
		" oncepay:lock:{o1:t:1001:" + token + "} ",
		" oncepay:token:{order.create:1001:" + token + "} c1:1001:pinned-key-0000000003 ",
	} {
		if !sent(redis, want) {
			t.Errorf("nothing was sent to Redis with %q", want)
		}
	}
	s.wantSound()
}

// column returns the first column of a query, in the order of the rows' ids.
func (s *stack) column(query string) []string {
	s.t.Helper()
	query, limit, limited := strings.Cut(query, " LIMIT ")
	query += " ORDER BY id"
	if limited {
		query += " LIMIT " + limit
	}
	rows, err := s.db.Query(query)
	if err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	var values []string
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			s.t.Fatalf("%s: %v", query, err)
		}
		values = append(values, v)
	}
	if err := rows.Err(); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	return values
}

// sent reports whether a proxy has seen a command with this text in it.
func sent(p *testenv.Proxy, text string) bool {
	for _, e := range p.Log() {
		if strings.Contains(e.Cmd+" ", text) {
			return true
		}
	}
	return false
}
