package mysqldb_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

// hostileServer starts a server whose defaults contradict everything the service needs.
func hostileServer(t *testing.T, globals ...string) (dsn string) {
	t.Helper()
	dsn = testenv.PrivateMySQL(t).DSN("shop")
	admin, err := sql.Open("mysql", strings.Replace(dsn, "/shop", "/", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for _, stmt := range append([]string{"CREATE DATABASE shop CHARACTER SET latin1"}, globals...) {
		exec(t, admin, stmt)
	}
	return dsn
}

// B55, B61: whatever the DSN and the server's defaults say, every connection is as the service needs it. What the driver
// itself refuses (interpolation over gbk) does not start.
func TestSettingsAreForced(t *testing.T) {
	dsn := hostileServer(t,
		"SET GLOBAL sql_mode = ''", "SET GLOBAL time_zone = '+05:30'", "SET GLOBAL autocommit = 0", "SET GLOBAL innodb_lock_wait_timeout = 50",
		"SET GLOBAL character_set_server = latin1", "SET GLOBAL collation_server = latin1_swedish_ci",
		"SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE")
	for _, params := range []string{
		"",
		"?sql_mode=''&time_zone='-08:00'&autocommit=0&innodb_lock_wait_timeout=50",
		"?tx_isolation='REPEATABLE-READ'&SQL_MODE='NO_BACKSLASH_ESCAPES'&Time_Zone='-08:00'",
		"?parseTime=false&clientFoundRows=false&interpolateParams=false&multiStatements=true&loc=Asia%2FShanghai",
		"?charset=latin1&character_set_client=gbk&character_set_results=latin1&character_set_connection=latin1",
		"?charset=gbk", "?collation=latin1_swedish_ci", "?collation=gbk_chinese_ci", "?charset=sjis,gbk&collation=utf8mb4_general_ci",
		"?unique_checks=0&completion_type=1&readTimeout=1h&allowAllFiles=true",
	} {
		t.Run(params, func(t *testing.T) {
			db, err := mysqldb.Open(t.Context(), dsn+params)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			wantForced(t, db)
		})
	}
	for _, params := range []string{"?interpolateParams=true&collation=gbk_chinese_ci", "?parseTime=maybe"} {
		if db, err := mysqldb.Open(t.Context(), dsn+params); err == nil {
			t.Errorf("%s: it starts", params)
			db.Close()
		}
	}
}

func wantForced(t *testing.T, db *sql.DB) {
	t.Helper()
	for query, w := range map[string]string{
		"SELECT @@time_zone": "+00:00", "SELECT @@autocommit": "1",
		"SELECT @@innodb_lock_wait_timeout": "3", "SELECT @@character_set_client": "utf8mb4", "SELECT @@character_set_results": "utf8mb4",
		"SELECT @@collation_connection": "utf8mb4_bin", "SELECT @@unique_checks": "1", "SELECT @@completion_type": "NO_CHAIN",
	} {
		want(t, db, w, query)
	}
	var name, isolation string // MySQL 8 and MariaDB 10.11 know it by different names
	row := db.QueryRowContext(t.Context(), "SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')")
	if err := row.Scan(&name, &isolation); err != nil || isolation != "READ-COMMITTED" {
		t.Errorf("%s is %s, %v", name, isolation, err)
	}
	exec(t, db, "DROP TABLE IF EXISTS t")
	exec(t, db, `CREATE TABLE t (id INT NOT NULL PRIMARY KEY, short VARCHAR(3) CHARACTER SET ascii NULL, small TINYINT NULL,
		s VARCHAR(64) CHARACTER SET utf8mb4 NULL, at DATETIME(6) NULL)`)
	exec(t, db, "INSERT INTO t (id, small) VALUES (1, 1)")
	// B48: nothing is bent to fit.
	for _, bad := range []string{
		"INSERT INTO t (id, short) VALUES (2, 'long')", "INSERT INTO t (id, small) VALUES (2, 128)", "INSERT INTO t (small) VALUES (2)",
		"INSERT INTO t (id, at) VALUES (2, '2026-02-30')", "INSERT INTO t (id, at) VALUES (2, '0000-00-00')", "INSERT INTO t VALUES (NULL, NULL, NULL, NULL, NULL)",
		"INSERT INTO t (id) VALUES (2); INSERT INTO t (id) VALUES (3)",
	} {
		if _, err := db.ExecContext(t.Context(), bad); err == nil {
			t.Errorf("accepted: %s", bad)
		}
	}
	// B49: rows matched, not rows changed.
	res, err := db.ExecContext(t.Context(), "UPDATE t SET small = 1 WHERE id = 1")
	if err := mysqldb.ExpectOne(res, err); err != nil {
		t.Errorf("an update to equal values: %v", err)
	}
	// B61: every byte arrives, quoted by the client.
	for _, s := range []string{`it's`, `"`, `\`, `\'`, "\x00", "\u00bf'", "é😀", "a\nb\r\x1a", "?", "-- ", "'; DROP TABLE t; -- "} {
		exec(t, db, "UPDATE t SET s = ? WHERE id = 1", s)
		want(t, db, s, "SELECT s FROM t WHERE id = 1")
		want(t, db, "1", "SELECT COUNT(*) FROM t WHERE s = ?", s)
	}
	// B54: times come back as they went, in UTC, and can be compared with.
	at := time.Date(2026, 5, 1, 23, 59, 59, 999999000, time.UTC)
	exec(t, db, "UPDATE t SET at = ? WHERE id = 1", at.In(time.FixedZone("CST", 8*3600)))
	var back time.Time
	if err := db.QueryRowContext(t.Context(), "SELECT at FROM t WHERE at = ?", at).Scan(&back); err != nil || !back.Equal(at) || back.Location() != time.UTC {
		t.Errorf("%v came back as %v, %v", at, back, err)
	}
	want(t, db, "2026-05-01 23:59:59.999999", "SELECT CAST(at AS CHAR) FROM t WHERE id = 1")
}

// B55: what is not forced is a refusal to start, and one message names everything.
func TestWhatCannotBeForcedRefusesToStartWithAllFaults(t *testing.T) {
	dsn := hostileServer(t, "SET GLOBAL unique_checks = 0", "SET GLOBAL completion_type = 1")
	db, err := mysqldb.Open(t.Context(), dsn)
	if err == nil {
		db.Close()
		t.Fatal("it starts")
	}
	for _, part := range []string{`unique_checks is "OFF"`, `completion_type is "CHAIN"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
}

func TestAServerThatIsNotThereIsAnError(t *testing.T) {
	proxy, dsn := testenv.BehindMySQLProxy(t, testenv.EmptyDatabase(t))
	proxy.Down()
	if _, err := mysqldb.Open(t.Context(), dsn); err == nil || !mysqldb.Unavailable(err) {
		t.Errorf("got %v", err)
	}
	if _, err := mysqldb.Open(t.Context(), "root:secret@nonsense"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}
