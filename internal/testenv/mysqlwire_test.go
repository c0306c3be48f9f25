package testenv_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"example.com/oncepay/internal/testenv"
)

// openMySQL returns a pool that goes to addr, and to the test's own database,
// which has the table t_row (id, body).
func openMySQL(t *testing.T, addr string, change ...func(*mysql.Config)) *sql.DB {
	t.Helper()
	direct, _ := servers()
	name := fmt.Sprintf("testenv_proxy_%d", os.Getpid())
	admin := openPool(t, direct, "", nil)
	for _, statement := range []string{
		"CREATE DATABASE IF NOT EXISTS " + name,
		"CREATE TABLE IF NOT EXISTS " + name + ".t_row (id BIGINT PRIMARY KEY, body LONGBLOB NOT NULL) ENGINE=InnoDB",
	} {
		if _, err := admin.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.Background(), "DROP DATABASE IF EXISTS "+name); err != nil {
			t.Errorf("drop %s: %v", name, err)
		}
	})
	return openPool(t, addr, name, change)
}

func openPool(t *testing.T, addr, database string, change []func(*mysql.Config)) *sql.DB {
	t.Helper()
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.DBName = "tcp", addr, "root", database
	cfg.InterpolateParams = true
	cfg.Logger = &mysql.NopLogger{} // cut connections are the point here
	for _, f := range change {
		f(cfg)
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatalf("mysql connector: %v", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(40) // the server allows 151 for all tests of the machine
	db.SetMaxIdleConns(40)
	t.Cleanup(func() { db.Close() })
	return db
}

func mysqlProxy(t *testing.T) *testenv.Proxy {
	t.Helper()
	addr, _ := servers()
	return testenv.NewMySQLProxy(t, "tcp", addr)
}

// insertTx inserts one row in a transaction of its own.
func insertTx(ctx context.Context, db *sql.DB, id int, body string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // no-op after Commit
	if _, err := tx.ExecContext(ctx, "INSERT INTO t_row (id, body) VALUES (?, ?)", id, body); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	return tx.Commit()
}

// rows counts the rows through a connection that bypasses the proxy.
func rows(t *testing.T) int {
	t.Helper()
	addr, _ := servers()
	var n int
	err := openMySQL(t, addr).QueryRowContext(t.Context(), "SELECT COUNT(*) FROM t_row").Scan(&n)
	if err != nil {
		t.Fatalf("count: %v", err)
	}
	return n
}

func mustExec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%.60s: %v", query, err)
	}
}

func TestMySQLLargePayloadsPassUnchanged(t *testing.T) {
	db := openMySQL(t, mysqlProxy(t).Addr())
	body := bytes.Repeat([]byte("0123456789abcde'"), 2<<20/16) // 2 MB
	mustExec(t, db, "INSERT INTO t_row (id, body) VALUES (1, ?)", body)
	var got []byte
	if err := db.QueryRowContext(t.Context(), "SELECT body FROM t_row").Scan(&got); err != nil {
		t.Fatalf("select: %v", err)
	}
	if !bytes.Equal(got, body) {
		t.Errorf("read %d bytes back that differ from the %d written", len(got), len(body))
	}

	// A row of two packets, whose first byte is that of an EOF packet.
	const size = 1 << 24
	if err := db.QueryRowContext(t.Context(), "SELECT REPEAT('x', ?)", size).Scan(&got); err != nil {
		t.Fatalf("select 16 MB: %v", err)
	}
	if len(got) != size || bytes.Count(got, []byte("x")) != size {
		t.Errorf("read %d bytes, want %d times x", len(got), size)
	}
	if err := db.PingContext(t.Context()); err != nil {
		t.Errorf("ping after the large row: %v", err)
	}
}

func TestMySQLEveryFormOfReplyPasses(t *testing.T) {
	proxy := mysqlProxy(t)
	for _, interpolate := range []bool{true, false} {
		t.Run(fmt.Sprintf("interpolateParams=%t", interpolate), func(t *testing.T) {
			db := openMySQL(t, proxy.Addr(), func(cfg *mysql.Config) {
				cfg.InterpolateParams = interpolate
				cfg.MultiStatements = true
			})
			db.SetMaxOpenConns(1) // one reply taken for another would show
			for range 3 {
				result, err := db.QueryContext(t.Context(), `
					WITH RECURSIVE d AS (SELECT 0 AS n UNION ALL SELECT n+1 FROM d WHERE n < 99)
					SELECT a.n*100 + b.n + ? AS n FROM d a JOIN d b ORDER BY n`, 1)
				if err != nil {
					t.Fatalf("select: %v", err)
				}
				want := 0
				for result.Next() {
					var got int
					want++
					if err := result.Scan(&got); err != nil || got != want {
						t.Fatalf("row %d: got %d, error %v", want, got, err)
					}
				}
				if err := result.Err(); err != nil || want != 10000 {
					t.Fatalf("%d rows, error %v, want 10000", want, err)
				}
				_, err = db.ExecContext(t.Context(), "SELECT * FROM t_missing WHERE id = ?", 1)
				if !hasNumber(err, 1146) {
					t.Fatalf("error %v, want 1146", err)
				}
				mustExec(t, db, "DELETE FROM t_row; SELECT 1; INSERT INTO t_row VALUES (1, ''); DO 1")
				mustExec(t, db, "DELETE FROM t_row WHERE id = ?", 1)
			}
			if err := db.PingContext(t.Context()); err != nil {
				t.Errorf("ping: %v", err)
			}
		})
	}
}

func hasNumber(err error, number uint16) bool {
	serverError, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && serverError.Number == number
}

func TestMySQLCutBeforeCommitStoresNothing(t *testing.T) {
	proxy := mysqlProxy(t)
	db := openMySQL(t, proxy.Addr())
	rule := proxy.On(testenv.Prefix("commit"), 1, testenv.CutBefore())
	if err := insertTx(t.Context(), db, 1, ""); err == nil {
		t.Error("a cut COMMIT was reported as done")
	}
	if n := rows(t); n != 0 {
		t.Errorf("%d rows, want 0", n)
	}
	if rule.Hits() != 1 {
		t.Errorf("%d hits, want 1", rule.Hits())
	}
	if err := insertTx(t.Context(), db, 1, ""); err != nil {
		t.Errorf("after the rule is used up: %v", err)
	}
	if n := rows(t); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	commits := commands(proxy, testenv.Prefix("COMMIT"))
	if len(commits) != 2 || !commits[0].Forwarded.IsZero() || !commits[0].Replied.IsZero() ||
		commits[1].Forwarded.IsZero() || commits[1].Replied.IsZero() {
		t.Errorf("log of COMMIT: %+v, want the first neither forwarded nor replied, the second both", commits)
	}
}

// commands returns the logged commands that m matches.
func commands(proxy *testenv.Proxy, m testenv.Match) []testenv.Event {
	return slices.DeleteFunc(proxy.Log(), func(e testenv.Event) bool { return !m(e.Cmd) })
}

func TestMySQLSwallowedCommitIsStored(t *testing.T) {
	proxy := mysqlProxy(t)
	db := openMySQL(t, proxy.Addr())
	proxy.On(testenv.Prefix("COMMIT"), -1, testenv.SwallowReply())
	for id := range 20 {
		if err := insertTx(t.Context(), db, id, ""); err == nil {
			t.Errorf("commit %d: no error although its reply was swallowed", id)
		}
		// No waiting here: the cut comes after the execution, always.
		if n := rows(t); n != id+1 {
			t.Fatalf("%d rows, want %d", n, id+1)
		}
	}
	for _, e := range commands(proxy, testenv.Prefix("COMMIT")) {
		if e.Forwarded.IsZero() || !e.Replied.IsZero() {
			t.Errorf("log of COMMIT: %+v, want forwarded, not replied", e)
		}
	}
}

func TestMySQLSwallowWaitsForTheEndOfSlowStatements(t *testing.T) {
	proxy := mysqlProxy(t)
	db := openMySQL(t, proxy.Addr(), func(cfg *mysql.Config) { cfg.MultiStatements = true })
	rule := proxy.On(testenv.Contains("INSERT"), -1, testenv.SwallowReply())
	// Several results, the slow one last; the rows show that it was waited for.
	for id, before := range []string{"", "DO 1; ", "SELECT 1; SELECT 2; "} {
		query := fmt.Sprintf("%sINSERT INTO t_row (id, body) SELECT %d, SLEEP(0.1)", before, id)
		if _, err := db.ExecContext(t.Context(), query); err == nil {
			t.Errorf("%s: no error although the reply was swallowed", query)
		}
		if n := rows(t); n != id+1 || rule.Hits() != id+1 {
			t.Fatalf("%s: %d rows, %d hits, want %d", query, n, rule.Hits(), id+1)
		}
	}
}

func TestMySQLHoldStopsBeforeAndHoldReplyAfterExecution(t *testing.T) {
	for name, tc := range map[string]struct {
		action   func(*testenv.Gate) testenv.Action
		rowsHeld int
	}{
		"Hold":      {testenv.Hold, 0},
		"HoldReply": {testenv.HoldReply, 1},
	} {
		t.Run(name, func(t *testing.T) {
			proxy, gate := mysqlProxy(t), testenv.NewGate(t)
			db := openMySQL(t, proxy.Addr())
			proxy.On(testenv.Contains("COMMIT"), 1, tc.action(gate))
			finished := make(chan error, 1)
			go func() { finished <- insertTx(t.Context(), db, 1, "") }()
			gate.WaitEntered(t, 1)
			if n := rows(t); n != tc.rowsHeld {
				t.Errorf("%d rows while held, want %d", n, tc.rowsHeld)
			}
			select {
			case err := <-finished:
				t.Errorf("finished while held: %v", err)
			default:
			}
			opened := time.Now()
			gate.Open()
			if err := <-finished; err != nil {
				t.Errorf("after opening: %v", err)
			}
			if n := rows(t); n != 1 {
				t.Errorf("%d rows after opening, want 1", n)
			}
			if e := commands(proxy, testenv.Prefix("COMMIT"))[0]; e.Replied.Before(opened) {
				t.Errorf("replied %s before the gate opened", opened.Sub(e.Replied))
			}
		})
	}
}

func TestMySQLClientThatHungUpIsRolledBack(t *testing.T) {
	proxy := mysqlProxy(t)
	db := openMySQL(t, proxy.Addr())
	gate := testenv.NewGate(t)
	proxy.On(testenv.Prefix("INSERT"), 1, testenv.HoldReply(gate))
	ctx, cancel := context.WithCancel(t.Context())
	finished := make(chan error, 1)
	go func() { finished <- insertTx(ctx, db, 1, "") }()
	gate.WaitEntered(t, 1)
	cancel()
	if err := <-finished; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	// The gate is still closed: the hang-up alone must reach the server and free
	// the row, or this insert runs into its lock.
	addr, _ := servers()
	if err := insertTx(t.Context(), openMySQL(t, addr), 1, ""); err != nil {
		t.Errorf("insert of the same row: %v", err)
	}
}

func TestMySQLHeldCommandRunsAlthoughItsClientHungUp(t *testing.T) {
	proxy, gate := mysqlProxy(t), testenv.NewGate(t)
	db := openMySQL(t, proxy.Addr())
	proxy.On(testenv.Prefix("INSERT"), 1, testenv.Hold(gate))
	ctx, cancel := context.WithCancel(t.Context())
	finished := make(chan error, 1)
	go func() {
		_, err := db.ExecContext(ctx, "INSERT INTO t_row (id, body) VALUES (1, '')")
		finished <- err
	}()
	gate.WaitEntered(t, 1)
	cancel()
	if err := <-finished; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if n := rows(t); n != 0 {
		t.Errorf("%d rows while held, want 0", n)
	}
	gate.Open()
	testenv.Eventually(t, 10*time.Second, "row inserted", func() error {
		if n := rows(t); n != 1 {
			return fmt.Errorf("%d rows", n)
		}
		return nil
	})
}

func TestMySQLDownRefusesAndUpServesOnTheSamePort(t *testing.T) {
	proxy := mysqlProxy(t)
	db := openMySQL(t, proxy.Addr())
	addr := proxy.Addr()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	proxy.Down()
	if _, err := tx.ExecContext(t.Context(), "DO 1"); err == nil {
		t.Error("a connection outlived Down")
	}
	_ = tx.Rollback() // frees the pool's connection; it is cut
	if err := db.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v, want connection refused", err)
	}
	proxy.Up()
	if err := db.PingContext(t.Context()); err != nil || proxy.Addr() != addr {
		t.Errorf("after Up: %v at %s, want success at %s", err, proxy.Addr(), addr)
	}
}

func TestMySQLRefusedLoginReachesTheClient(t *testing.T) {
	proxy := mysqlProxy(t)
	db := openMySQL(t, proxy.Addr(), func(cfg *mysql.Config) { cfg.User, cfg.Passwd = "nobody", "wrong" })
	err := db.PingContext(t.Context())
	if !hasNumber(err, 1045) && !hasNumber(err, 1698) { // MySQL's number, MariaDB's for a socket login
		t.Errorf("error %v, want access denied", err)
	}
}

func TestMySQLUnreadableTrafficFailsTheTest(t *testing.T) {
	fake := &fatalTB{TB: t}
	addr, _ := servers()
	proxy := testenv.NewMySQLProxy(fake, "tcp", addr)
	db := openMySQL(t, proxy.Addr(), func(cfg *mysql.Config) {
		if err := cfg.Apply(mysql.EnableCompression(true)); err != nil {
			t.Fatalf("compression: %v", err)
		}
	})
	if err := db.PingContext(t.Context()); err == nil || !fake.failed.Load() {
		t.Errorf("ping error %v, test failed %t, want an error and a failed test", err, fake.failed.Load())
	}
}

func TestMySQLManyClientsGetTheirOwnReplies(t *testing.T) {
	proxy := mysqlProxy(t)
	db := openMySQL(t, proxy.Addr())
	const clients, rounds = 200, 5
	testenv.Together(clients, func(i int) {
		for round := range rounds {
			id := i*rounds + round
			if err := insertTx(t.Context(), db, id, fmt.Sprint("body of ", id)); err != nil {
				t.Errorf("insert %d: %v", id, err)
				return
			}
			var body string
			err := db.QueryRowContext(t.Context(), "SELECT body FROM t_row WHERE id = ?", id).Scan(&body)
			if err != nil || body != fmt.Sprint("body of ", id) {
				t.Errorf("row %d: %q, error %v", id, body, err)
			}
		}
	})
	if n := rows(t); n != clients*rounds {
		t.Errorf("%d rows, want %d", n, clients*rounds)
	}
	if n := len(commands(proxy, testenv.Prefix("COMMIT"))); n != clients*rounds {
		t.Errorf("%d COMMITs in the log, want %d", n, clients*rounds)
	}
}
