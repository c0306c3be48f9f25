package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// committer is a connection whose COMMIT ends as the test says. A real server ends a COMMIT in these ways only when it is
// shut down at the very moment, or behind a proxy.
type committer struct{ err error }

func (c committer) Connect(context.Context) (driver.Conn, error) { return c, nil }
func (c committer) Driver() driver.Driver                        { return nil }
func (c committer) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not prepared") }
func (c committer) Close() error                                 { return nil }
func (c committer) Begin() (driver.Tx, error)                    { return c, nil }
func (c committer) Commit() error                                { return c.err }
func (c committer) Rollback() error                              { return nil }

// What the server answers decides, unless it says that it broke off: then, and without an answer, nobody knows.
func TestTheOutcomeOfCommitIsKnownOnlyFromAnAnswer(t *testing.T) {
	for err, unknown := range map[error]bool{
		serverError(1213, "Deadlock found"):                  false, // TiDB and Galera find conflicts at COMMIT
		serverError(1205, "Lock wait timeout"):               false,
		serverError(1290, "--read-only"):                     false,
		serverError(1053, "Server shutdown in progress"):     true,
		serverError(1317, "Query execution was interrupted"): true,
		serverError(1927, "Connection was killed"):           true,
		serverError(2006, "MySQL server has gone away"):      true,
		serverError(2013, "Lost connection"):                 true,
		driver.ErrBadConn:                                    true,
		mysql.ErrInvalidConn:                                 true,
		io.ErrUnexpectedEOF:                                  true,
		errors.New("anything else"):                          true,
	} {
		db := sql.OpenDB(committer{err})
		tx, beginErr := db.BeginTx(t.Context(), nil)
		if beginErr != nil {
			t.Fatal(beginErr)
		}
		got := commit(t.Context(), tx)
		if errors.Is(got, ErrOutcomeUnknown) != unknown || !errors.Is(got, err) || unknown && retryCause(got) != "" {
			t.Errorf("%v: %v, unknown should be %v", err, got, unknown)
		}
		if n := number(err); n == errDeadlock && retryCause(got) != "deadlock" {
			t.Errorf("a deadlock at COMMIT is not run again: %v", got)
		}
		db.Close()
	}
}
