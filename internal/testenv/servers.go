package testenv

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/embedded"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/redisdb"
	"example.com/oncepay/migrations"
)

// setupTimeout bounds the start of a server or the set-up of a database on a loaded machine.
const setupTimeout = time.Minute

// servers are what the tests of one package (one process) share. TEST_MYSQL_DSN (a DSN whose user may create databases)
// and TEST_REDIS_ADDR name running servers; what is not named is started as a private child, on first use. A server that
// cannot be had is a failed test, never a skipped one.
type servers struct {
	dir   string
	mysql func() (string, error) // DSN of the server; the database in it does not matter
	redis func() (string, error) // URL
	stop  []func(context.Context) error
}

// shared is the one exception to "no globals": tests of a package share servers, and *testing.M hands nothing on.
var shared *servers

// Main runs a package's tests with their servers: func TestMain(m *testing.M) { testenv.Main(m) }.
func Main(m *testing.M) {
	dir, err := os.MkdirTemp("", "oncepay-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		os.Exit(1)
	}
	redisdb.Quiet()
	shared = newServers(dir)
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	for _, stop := range shared.stop {
		err = errors.Join(err, stop(ctx))
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, "testenv: clean up:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func newServers(dir string) *servers {
	s := &servers{dir: dir}
	s.mysql = sync.OnceValues(func() (string, error) {
		if dsn := os.Getenv("TEST_MYSQL_DSN"); dsn != "" {
			return dsn, nil
		}
		server, err := embedded.StartMySQL(context.Background(), filepath.Join(dir, "mysql"), slog.New(slog.DiscardHandler))
		if err != nil {
			return "", err
		}
		s.stop = append(s.stop, server.Stop)
		return server.DSN("information_schema"), nil
	})
	s.redis = sync.OnceValues(func() (string, error) {
		if addr := os.Getenv("TEST_REDIS_ADDR"); addr != "" {
			return "redis://" + addr + "/9", nil
		}
		server, err := embedded.StartRedis(context.Background(), filepath.Join(dir, "redis"), slog.New(slog.DiscardHandler))
		if err != nil {
			return "", err
		}
		s.stop = append(s.stop, server.Stop)
		return server.URL(), nil
	})
	return s
}

// EmptyDatabase returns the DSN of a new empty database, which is dropped after the test.
func EmptyDatabase(t testing.TB) string {
	t.Helper()
	base, err := shared.mysql()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	cfg, err := mysql.ParseDSN(base)
	if err != nil {
		t.Fatalf("testenv: TEST_MYSQL_DSN: %v", err)
	}
	name := "oncepay_test_" + strings.ToLower(rand.Text()[:16])
	admin, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	if _, err := admin.Exec("CREATE DATABASE " + name + " DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"); err != nil {
		t.Fatalf("testenv: %v", err)
	}
	t.Cleanup(func() {
		if _, err := admin.Exec("DROP DATABASE " + name); err != nil {
			t.Errorf("testenv: %v", err)
		}
		admin.Close()
	})
	cfg.DBName = name
	return cfg.FormatDSN()
}

// Database returns the DSN of a new database with this build's schema.
func Database(t testing.TB) string {
	t.Helper()
	dsn := EmptyDatabase(t)
	schema.once.Do(func() { schema.statements, schema.err = migrated(t) })
	if schema.err != nil {
		t.Fatalf("testenv: %v", schema.err)
	}
	db := openPlain(t, dsn)
	defer db.Close()
	for _, statement := range schema.statements {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("testenv: %s: %v", statement, err)
		}
	}
	return dsn
}

// schema is what the migrations come to, read once for each test binary: making the tables as they are in the end is several
// times faster than going all the way for each test. The tests of the migrations themselves go it.
var schema struct {
	once       sync.Once
	statements []string
	err        error
}

// migrated goes the way of the migrations in a database of its own and returns the statements that lead straight to its end.
func migrated(t testing.TB) (statements []string, err error) {
	dsn := EmptyDatabase(t)
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	m, err := mysqldb.NewMigrator(ctx, dsn, migrations.FS, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(m.Up(ctx), m.Close()); err != nil {
		return nil, err
	}
	db := openPlain(t, dsn)
	defer db.Close()
	tables, err := mysqldb.Collect(func(row mysqldb.Scanner) (name string, err error) { return name, row.Scan(&name) })(
		db.QueryContext(ctx, "SHOW TABLES"))
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		var name, statement string
		if err := db.QueryRowContext(ctx, "SHOW CREATE TABLE "+table).Scan(&name, &statement); err != nil {
			return nil, err
		}
		statements = append(statements, statement)
	}
	var version int
	if err := db.QueryRowContext(ctx, "SELECT version FROM schema_migrations").Scan(&version); err != nil {
		return nil, err
	}
	return append(statements, fmt.Sprintf("INSERT INTO schema_migrations (version, dirty) VALUES (%d, 0)", version)), nil
}

func openPlain(t testing.TB, dsn string) *sql.DB {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return db
}

// OpenDB opens a database the way the service does.
func OpenDB(t testing.TB, dsn string) *mysqldb.DB {
	t.Helper()
	db, err := mysqldb.Open(t.Context(), dsn)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	t.Cleanup(func() { db.Close() })
	return &mysqldb.DB{DB: db, Metrics: metrics.New()}
}

// RedisURL returns the URL of an empty Redis database of the shared server.
func RedisURL(t testing.TB) string {
	t.Helper()
	url, err := shared.redis()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	client := OpenRedis(t, url)
	if err := client.FlushDB(t.Context()).Err(); err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return url
}

// OpenRedis opens a client the way the service does.
func OpenRedis(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	client, err := redisdb.Open("", url)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// PrivateRedis starts a Redis of the test's own, to be killed, paused and filled.
func PrivateRedis(t testing.TB) *embedded.Redis {
	t.Helper()
	server, err := embedded.StartRedis(t.Context(), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	t.Cleanup(func() { stopServer(t, server.Stop) })
	return server
}

// PrivateMySQL starts a MySQL-compatible server of the test's own, to be killed, restarted and reconfigured.
func PrivateMySQL(t testing.TB) *embedded.MySQL {
	t.Helper()
	server, err := embedded.StartMySQL(t.Context(), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	t.Cleanup(func() { stopServer(t, server.Stop) })
	return server
}

func stopServer(t testing.TB, stop func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	if err := stop(ctx); err != nil {
		t.Errorf("testenv: %v", err)
	}
}

// BehindMySQLProxy puts a proxy in front of a DSN's server and returns it with the DSN that leads through it.
func BehindMySQLProxy(t testing.TB, dsn string) (*Proxy, string) {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	p := NewMySQLProxy(t, cfg.Net, cfg.Addr)
	cfg.Net, cfg.Addr = "tcp", p.Addr()
	return p, cfg.FormatDSN()
}

// BehindRedisProxy puts a proxy in front of a Redis URL and returns it with the URL that leads through it.
func BehindRedisProxy(t testing.TB, url string) (*Proxy, string) {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	p := NewRedisProxy(t, opts.Network, opts.Addr)
	return p, fmt.Sprintf("redis://%s/%d", p.Addr(), opts.DB)
}
