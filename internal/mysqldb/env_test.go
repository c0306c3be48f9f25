package mysqldb_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// counters opens a new database with a table of numbered rows, all of them 0.
func counters(t *testing.T, rows int) (dsn string, db *mysqldb.DB) {
	t.Helper()
	dsn = testenv.EmptyDatabase(t)
	db = testenv.OpenDB(t, dsn)
	exec(t, db.DB, "CREATE TABLE counter (id INT NOT NULL PRIMARY KEY, n INT NOT NULL, CONSTRAINT ck CHECK (n < 100))")
	for id := range rows {
		exec(t, db.DB, "INSERT INTO counter VALUES (?, 0)", id)
	}
	return dsn, db
}

func exec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// value returns one value as text, or "none" without a row.
func value(t *testing.T, db *sql.DB, query string, args ...any) string {
	t.Helper()
	var s sql.NullString
	err := db.QueryRowContext(t.Context(), query, args...).Scan(&s)
	if err == sql.ErrNoRows {
		return "none"
	}
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s.String
}

func want(t *testing.T, db *sql.DB, want, query string, args ...any) {
	t.Helper()
	if got := value(t, db, query, args...); got != want {
		t.Errorf("%s %v: %s, want %s", query, args, got, want)
	}
}

// number is the server's error number, or 0.
func number(err error) uint16 {
	if me, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return me.Number
	}
	return 0
}

func databaseName(t *testing.T, dsn string) string {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return cfg.DBName
}

// conversation lists what a connection sent from its first command with the given tag on.
func conversation(log []testenv.Event, tag string) string {
	var b strings.Builder
	conn := 0
	for _, e := range log {
		if conn == 0 && strings.Contains(e.Cmd, tag) {
			conn = e.Conn
		}
		if e.Conn == conn && conn != 0 {
			fmt.Fprintln(&b, e.Cmd)
		}
	}
	return b.String()
}
