// Package mysqldb opens MySQL (8.x, MariaDB 10.11 or TiDB) with the settings the business relies on, runs transactions,
// and tells the errors apart that mean something to it.
package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	// lockWaitSeconds is innodb_lock_wait_timeout: how long a statement waits for another transaction's row. A twin waits
	// this long for the winner's commit; it is under the request deadline so that the request can still answer.
	lockWaitSeconds = 3
	// ioTimeout bounds one round trip, COMMIT's too, which no context can interrupt. Longer than the lock wait, so that a
	// wait ends as MySQL's error 1205, which says what happened, and not as a cut connection, which does not.
	ioTimeout = 6 * time.Second
	// dialTimeout: a server that does not accept within this is down.
	dialTimeout = 2 * time.Second
	// maxOpenConns is per process. MariaDB's default max_connections is 151, so two instances and an operator fit.
	maxOpenConns = 64
	// connMaxLifetime is below common idle cut-offs of proxies and load balancers (5 minutes and up).
	connMaxLifetime = 3 * time.Minute
)

// sqlMode makes the server refuse what it would otherwise bend to fit (a too long string, a number out of range).
const sqlMode = "STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"

// charset is the only one spoken with the server, in both directions.
const charset = "utf8mb4"

// Querier is what reads need: a *sql.DB or a *sql.Tx.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Open returns a pool whose every connection has the forced settings, whatever the DSN or the server's defaults say,
// and checks on one connection that they took effect. The error names all that did not.
func Open(ctx context.Context, dsn string) (*sql.DB, error) {
	cfg, err := forced(dsn)
	if err != nil {
		return nil, err
	}
	base, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("mysql: %w", err)
	}
	db := sql.OpenDB(connector{base})
	db.SetMaxOpenConns(maxOpenConns)
	db.SetMaxIdleConns(maxOpenConns) // closing idle connections under bursts costs a handshake each
	db.SetConnMaxLifetime(connMaxLifetime)
	if err := assertSettings(ctx, db); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// forced parses the DSN and overrides what the business relies on.
func forced(dsn string) (*mysql.Config, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("mysql: MYSQL_DSN: %w", err)
	}
	cfg.ParseTime = true
	cfg.Loc = time.UTC
	cfg.InterpolateParams = true // one round trip for each statement instead of two
	cfg.ClientFoundRows = true   // affected rows = rows matched, so that an update to equal values is not "0 rows"
	cfg.MultiStatements = false
	cfg.AllowAllFiles = false
	cfg.RejectReadOnly = true // after a failover the old primary's connection is dropped, not kept
	cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout = dialTimeout, ioTimeout, ioTimeout
	cfg.Logger = nopLogger{} // the errors come back as values and are logged once, at the edge
	// interpolateParams is only safe where no multi-byte character can hide a quote: utf8mb4, never gbk or sjis.
	cfg.Collation = ""
	if err := cfg.Apply(mysql.Charset(charset, charset+"_bin")); err != nil {
		return nil, fmt.Errorf("mysql: charset: %w", err)
	}
	params := make(map[string]string, len(cfg.Params)+2)
	for name, value := range cfg.Params {
		switch strings.ToLower(name) {
		case "sql_mode", "time_zone", "tx_isolation", "transaction_isolation", "innodb_lock_wait_timeout", "autocommit", "charset",
			"character_set_client", "character_set_connection", "character_set_results", "unique_checks", "completion_type":
		default:
			params[name] = value
		}
	}
	cfg.Params = params
	return cfg, nil
}

type nopLogger struct{}

func (nopLogger) Print(...any) {}

// connector sets up each new connection with one statement the driver's own parameters cannot express on all servers:
// the isolation level has another variable name on MariaDB than on MySQL, its SET SESSION form is the same on all.
type connector struct{ driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	exec := conn.(driver.ExecerContext)
	for _, stmt := range []string{
		fmt.Sprintf("SET SESSION sql_mode = '%s', time_zone = '+00:00', autocommit = 1, innodb_lock_wait_timeout = %d", sqlMode, lockWaitSeconds),
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
	} {
		if _, err := exec.ExecContext(ctx, stmt, nil); err != nil {
			conn.Close()
			return nil, fmt.Errorf("mysql: %s: %w", stmt, err)
		}
	}
	return conn, nil
}

// assertSettings reads back what Open forced, and what would undo its guards and cannot be forced on every server.
func assertSettings(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, "SHOW SESSION VARIABLES")
	if err != nil {
		return fmt.Errorf("mysql: connect: %w", err)
	}
	defer rows.Close()
	got := make(map[string]string)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return fmt.Errorf("mysql: read settings: %w", err)
		}
		got[strings.ToLower(name)] = value
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("mysql: read settings: %w", err)
	}
	return settingFaults(got)
}

// settingFaults names every setting that is not as the service needs it, or that the server does not show.
func settingFaults(got map[string]string) error {
	isolation := "transaction_isolation" // MySQL 8, TiDB, MariaDB from 11.1
	if _, ok := got[isolation]; !ok {
		isolation = "tx_isolation"
	}
	var faults []error
	for _, want := range []struct{ name, value string }{
		{"sql_mode", sqlMode},
		{"time_zone", "+00:00"},
		{isolation, "READ-COMMITTED"},
		{"autocommit", "ON"},
		{"innodb_lock_wait_timeout", strconv.Itoa(lockWaitSeconds)},
		{"character_set_client", charset},
		{"character_set_connection", charset},
		{"character_set_results", charset},
		{"unique_checks", "ON"},         // OFF lets InnoDB pass over the unique indexes that decide here
		{"completion_type", "NO_CHAIN"}, // CHAIN begins a transaction behind every COMMIT
	} {
		if value := got[want.name]; !sameSetting(value, want.value) {
			faults = append(faults, fmt.Errorf("mysql: %s is %q, the service needs %q", want.name, value, want.value))
		}
	}
	return errors.Join(faults...)
}

// sameSetting compares case-blind, and lists (sql_mode) as sets of which the wanted must all be there.
func sameSetting(got, want string) bool {
	have := make(map[string]bool)
	for g := range strings.SplitSeq(strings.ToUpper(got), ",") {
		have[g] = true
	}
	for w := range strings.SplitSeq(strings.ToUpper(want), ",") {
		if !have[w] {
			return false
		}
	}
	return true
}

// Scanner is one row: a *sql.Row or *sql.Rows.
type Scanner interface{ Scan(dest ...any) error }

// Collect reads every row of a query's result and closes it: mysqldb.Collect(scan)(q.QueryContext(ctx, ...)).
func Collect[T any](scan func(Scanner) (T, error)) func(*sql.Rows, error) ([]T, error) {
	return func(rows *sql.Rows, err error) ([]T, error) {
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		var all []T
		for rows.Next() {
			one, err := scan(rows)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
		return all, rows.Err()
	}
}
