package mysqldb_test

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	"example.com/oncepay/internal/testenv"
)

// schema describes every column and index of the database.
func schema(t *testing.T, db *sql.DB) string {
	t.Helper()
	return strings.Join(slices.Concat(
		list(t, db, `SELECT CONCAT_WS(' ', table_name, ordinal_position, column_name, column_type, is_nullable, collation_name, column_default)
			FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY 1`),
		list(t, db, `SELECT CONCAT_WS(' ', table_name, index_name, non_unique, seq_in_index, column_name)
			FROM information_schema.statistics WHERE table_schema = DATABASE() ORDER BY 1`)), "\n")
}

func list(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

// onceOnly lists the unique index of each fact that must not be there twice, and its columns.
func onceOnly() map[string]string {
	return map[string]string{
		"t_sku.PRIMARY":                        "sku_id",
		"t_stock_movement.uk_cause_kind":       "cause,kind,sku_id",
		"t_activity.PRIMARY":                   "activity_id",
		"t_order.uk_order_no":                  "order_no",
		"t_order.uk_biz_token":                 "biz_token",
		"t_order_history.uk_order_version":     "order_no,version",
		"t_idempotency_key.uk_caller_key":      "caller_id,idem_key",
		"t_outbox.uk_msg_id":                   "msg_id",
		"t_payment.uk_pay_no":                  "pay_no",
		"t_payment.uk_open":                    "open_key",
		"t_payment.uk_paid_order":              "paid_order_no",
		"t_trade.uk_channel_trade":             "channel,trade_no",
		"t_refund.uk_refund_no":                "refund_no",
		"t_ledger_entry.uk_cause_kind_account": "cause,kind,account",
		"t_exception.uk_kind_subject":          "kind,subject",
		"t_message_dedup.uk_consumer_msg":      "consumer,msg_id",
		"t_relay_shard.PRIMARY":                "shard",
		"t_subscription.PRIMARY":               "consumer,topic",
		"t_coupon.uk_coupon_no":                "coupon_no",
		"t_coupon.uk_grant_key":                "grant_key",
		"t_point_account.PRIMARY":              "user_id",
		"t_point_entry.uk_cause_kind":          "cause,kind",
		"t_order_points.PRIMARY":               "order_no",
		"t_coupon_code.uk_code":                "code",
		"t_bill.uk_bill":                       "channel,bill_date,sha256",
		"t_reconciliation.uk_channel_date":     "channel,bill_date",
		"t_recon_difference.uk_difference":     "reconciliation_id,kind,subject",
	}
}

// B44: the database itself refuses each once-only fact the second time, and there is no unique index that this list does
// not know.
func TestEveryOnceOnlyFactHasItsUniqueIndex(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	got := make(map[string]string)
	for _, line := range list(t, db.DB, `
		SELECT CONCAT(table_name, '.', index_name, ' ', GROUP_CONCAT(column_name ORDER BY seq_in_index), ' ', MAX(COALESCE(sub_part, 'whole')))
		FROM information_schema.statistics WHERE table_schema = DATABASE() AND non_unique = 0 AND table_name <> 'schema_migrations'
		GROUP BY table_name, index_name`) {
		part := strings.Fields(line)
		if part[2] != "whole" {
			t.Errorf("%s is unique over a prefix only", part[0])
		}
		if part[1] != "id" { // the surrogate keys say nothing of the business
			got[part[0]] = part[1]
		}
	}
	for name, columns := range onceOnly() {
		if got[name] != columns {
			t.Errorf("%s is on %q, want %q", name, got[name], columns)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("%s is not in onceOnly", name)
	}
}

// B21: what is compared as a key is compared byte by byte; nullable key columns would let a fact in twice. The two that may be
// NULL are meant to: an attempt that is not open, or did not pay its order, takes nobody's place.
func TestEveryKeyColumnIsBinaryAndNotNull(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	lines := list(t, db.DB, `
		SELECT CONCAT_WS(' ', c.table_name, c.column_name, c.data_type, COALESCE(c.collation_name, 'none'), c.is_nullable)
		FROM information_schema.columns c
		JOIN (SELECT DISTINCT table_name, column_name, non_unique FROM information_schema.statistics
			WHERE table_schema = DATABASE() AND non_unique = 0) s
			ON s.table_name = c.table_name AND s.column_name = c.column_name
		WHERE c.table_schema = DATABASE() AND c.table_name <> 'schema_migrations'`)
	texts := 0
	for _, line := range lines {
		part := strings.Fields(line)
		nullable := part[0] == "t_payment" && (part[1] == "open_key" || part[1] == "paid_order_no")
		if (part[4] != "NO") != nullable {
			t.Errorf("%s.%s may be NULL: %s", part[0], part[1], part[4])
		}
		if part[2] == "varchar" || part[2] == "char" {
			texts++
			if part[3] != "ascii_bin" {
				t.Errorf("%s.%s has collation %s", part[0], part[1], part[3])
			}
		}
	}
	if texts < 8 {
		t.Errorf("only %d text columns in unique keys: %v", texts, lines)
	}
	// Names of things, which other tables refer to, have the same collation without being a key there.
	for _, line := range list(t, db.DB, `
		SELECT CONCAT_WS(' ', table_name, column_name, COALESCE(collation_name, 'none')) FROM information_schema.columns
		WHERE table_schema = DATABASE() AND data_type IN ('varchar', 'char') AND column_name NOT IN ('title', 'reason', 'detail', 'resolution', 'outcome', 'last_error')`) {
		if !strings.HasSuffix(line, " ascii_bin") {
			t.Errorf("%s should be ascii_bin", line)
		}
	}
}

// B21: pairs that a loose collation would take for one are two; characters outside ASCII are refused, never folded.
func TestKeysThatOnlyLookAlikeAreTwo(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	insert := func(id string) error {
		_, err := db.ExecContext(t.Context(), `INSERT INTO t_outbox (msg_id, topic, partition_key, version, payload, create_time) VALUES (?, 't', 'k', 1, '{}', NOW())`, id)
		return err
	}
	for _, id := range []string{"abc", "ABC", "Abc", "cafe", "ss"} {
		if err := insert(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{"café", "ß", "ＡＢＣ", "abc"} {
		if err := insert(id); err == nil {
			t.Errorf("%q is accepted", id)
		}
	}
	if err := insert(strings.Repeat("x", 65)); number(err) != 1406 { // B48: too long is an error, never cut to fit
		t.Errorf("65 characters: %v", err)
	}
}

// B55: each key look-up of the service finds its row by an index.
func TestLookUpsUseTheirIndex(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	for i := range 200 { // with a few rows the optimizer would rather scan
		exec(t, db.DB, `INSERT INTO t_order (order_no, user_id, sku_id, activity_id, biz_token, status, version, quantity, amount, currency, expires_at, create_time, update_time)
			VALUES (?, ?, ?, 'a', ?, 0, 1, 1, 1, 'CNY', NOW(), NOW(), NOW())`, fmt.Sprintf("%032d", i), i, i, fmt.Sprint("o1:", i))
		exec(t, db.DB, `INSERT INTO t_idempotency_key (caller_id, idem_key, operation, fingerprint, state, owner, lease_until, create_time, expires_at)
			VALUES (?, ?, 'x', 'x', 1, 'x', NOW(), NOW(), NOW())`, i, fmt.Sprint("key-", i))
		exec(t, db.DB, `INSERT INTO t_stock_movement (cause, kind, sku_id, available, reserved, sold, create_time) VALUES (?, 'adjust', ?, 0, 0, 0, NOW())`, fmt.Sprint("c", i), i)
		exec(t, db.DB, `INSERT INTO t_order_history (order_no, version, to_status, cause, actor, create_time) VALUES (?, 1, 0, 'create', 'x', NOW())`, fmt.Sprintf("%032d", i))
	}
	for query, index := range map[string]string{
		"SELECT id FROM t_order WHERE order_no = '00000000000000000000000000000007'":                                      "uk_order_no",
		"SELECT amount FROM t_order WHERE biz_token = 'o1:7'":                                                             "uk_biz_token",
		"SELECT amount FROM t_order WHERE user_id = 7 AND sku_id = 7 AND activity_id = 'a' ORDER BY attempt DESC LIMIT 1": "ix_activity",
		"SELECT state FROM t_idempotency_key WHERE caller_id = 7 AND idem_key = 'key-7'":                                  "uk_caller_key",
		"SELECT available FROM t_stock_movement WHERE cause = 'c7' AND kind = 'adjust'":                                   "uk_cause_kind",
		"SELECT COUNT(*) FROM t_order_history WHERE order_no = '00000000000000000000000000000007' AND cause = 'create'":   "uk_order_version",
	} {
		if got := explainKey(t, db.DB, query); got != index {
			t.Errorf("%s uses %q, want %s", query, got, index)
		}
	}
}

// explainKey returns the index that a query on one table uses.
func explainKey(t *testing.T, db *sql.DB, query string) string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "EXPLAIN "+query)
	if err != nil {
		t.Fatal(err)
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
		t.Fatalf("EXPLAIN %s: nothing, %v", query, rows.Err())
	}
	if err := rows.Scan(dest...); err != nil {
		t.Fatal(err)
	}
	return values[slices.Index(columns, "key")].String
}
