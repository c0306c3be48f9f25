package recon

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"example.com/oncepay/internal/mysqldb"
)

// multiplied adds copies first to last of everything that is about an order: each copy has numbers of its own, which the tables name
// alike because the orders' numbers are full of zeros.
func multiplied(t *testing.T, c *Checker, first, last int) {
	t.Helper()
	lines, err := mysqldb.Collect(func(row mysqldb.Scanner) (s string, err error) { return s, row.Scan(&s) })(c.DB.QueryContext(t.Context(), `
		SELECT CONCAT_WS(' ', table_name, column_name, data_type) FROM information_schema.columns WHERE table_schema = DATABASE()
			AND table_name LIKE 't\_%' AND table_name NOT IN ('t_sku', 't_activity', 't_subscription', 't_point_account', 't_relay_shard')
			AND column_name <> 'id' ORDER BY table_name, ordinal_position`))
	if err != nil {
		t.Fatal(err)
	}
	columns, values := make(map[string][]string), make(map[string][]string)
	for _, line := range lines {
		part := strings.Fields(line)
		table, column, value := part[0], part[1], part[1]
		switch {
		case column == "biz_token", column == "idem_key", column == "grant_key":
			value = fmt.Sprintf("CONCAT(%s, '-copy-', ?)", column)
		case part[2] == "char" || part[2] == "varchar":
			value = fmt.Sprintf("REPLACE(%s, '0000000', LPAD(?, 7, '0'))", column)
		}
		columns[table], values[table] = append(columns[table], column), append(values[table], value)
	}
	for table := range columns {
		list := strings.Join(values[table], ", ")
		for i := first; i <= last; i++ {
			args := make([]any, strings.Count(list, "?"))
			for j := range args {
				args[j] = i
			}
			query := "INSERT INTO " + table + " (" + strings.Join(columns[table], ", ") + ") SELECT " + list + " FROM original_" + table
			for _, key := range []string{"cause", "msg_id"} { // the few that are hashed, or not about an order, would come twice
				if slices.Contains(columns[table], key) && table != "t_order_history" {
					query += " WHERE " + key + " LIKE '%0000000%'"
				}
			}
			exec(t, c, query, args...)
		}
	}
}

// rowsRead is how many rows the server has read so far, by whatever way.
func rowsRead(t *testing.T, c *Checker) (n int64) {
	t.Helper()
	counts, err := mysqldb.Collect(func(row mysqldb.Scanner) (v int64, err error) { var name string; return v, row.Scan(&name, &v) })(
		c.DB.QueryContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Handler_read%'"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range counts {
		n += v
	}
	return n
}

// Four times the rows are read at most eight times as much: an invariant that compares every row with every other would read sixteen
// times as much, and stop being run.
func TestTheInvariantsGrowNoFasterThanTheTables(t *testing.T) {
	c := newChecker(t)
	busy(t, c)
	tables, err := mysqldb.Collect(func(row mysqldb.Scanner) (name string, err error) { return name, row.Scan(&name) })(
		c.DB.QueryContext(t.Context(), "SHOW TABLES LIKE 't\\_%'"))
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		exec(t, c, "CREATE TABLE original_"+table+" AS SELECT * FROM "+table)
	}
	cost := func() map[string]int64 {
		costs := make(map[string]int64)
		for _, inv := range c.invariants() {
			before := rowsRead(t, c)
			if _, err := c.run(t.Context(), inv); err != nil {
				t.Fatalf("%s: %v", inv.name, err)
			}
			costs[inv.name] = rowsRead(t, c) - before
		}
		return costs
	}
	multiplied(t, c, 1, 24)
	small := cost()
	multiplied(t, c, 25, 99)
	for name, large := range cost() {
		if large > 8*small[name] {
			t.Errorf("%s reads %d rows, and %d of four times as many", name, small[name], large)
		}
	}
}
