package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// Server error numbers that decide something (MySQL Server Error Message Reference; MariaDB and TiDB use the same).
const (
	errDuplicate      = 1062 // ER_DUP_ENTRY: rolls back the statement only
	errLockWait       = 1205 // ER_LOCK_WAIT_TIMEOUT: rolls back the statement only
	errDeadlock       = 1213 // ER_LOCK_DEADLOCK: rolls back the whole transaction
	errSnapshotStale  = 1020 // ER_CHECKREAD: MariaDB 11.8 raises it where a snapshot is stale; whole transaction
	errTooManyConns   = 1040 // ER_CON_COUNT_ERROR
	errShutdown       = 1053 // ER_SERVER_SHUTDOWN
	errOptionReadOnly = 1290 // ER_OPTION_PREVENTS_STATEMENT: --read-only, as after a failover
	errReadOnlyMode   = 1836 // ER_READ_ONLY_MODE
	errKilled         = 1317 // ER_QUERY_INTERRUPTED
	errGone           = 2006 // CR_SERVER_GONE_ERROR, as some proxies pass it on
	errLost           = 2013 // CR_SERVER_LOST
	errQueryTimeout   = 3024 // ER_QUERY_TIMEOUT: max_execution_time
	errConnKilled     = 1927 // MariaDB ER_CONNECTION_KILLED
)

// ErrOutcomeUnknown marks a transaction whose COMMIT was sent and never answered: it may have happened. Nothing may be
// concluded or compensated; a repeat finds out.
var ErrOutcomeUnknown = errors.New("mysql: the outcome of COMMIT is not known")

// ErrStale asks InTx to run the whole function again: it read a row that changed before it could be updated.
var ErrStale = errors.New("mysql: a row changed between reading and writing")

// IsDuplicate reports whether err is a violation of the named unique index and of no other.
func IsDuplicate(err error, index string) bool {
	name, ok := duplicateIndex(err)
	return ok && name == index
}

// duplicateIndex reads the index name from "Duplicate entry 'x' for key 't.uk_y'": MySQL 8 puts the table before it,
// MariaDB does not. The value may itself contain quotes, so the text is read from its end.
func duplicateIndex(err error) (string, bool) {
	var me *mysql.MySQLError
	if !errors.As(err, &me) || me.Number != errDuplicate {
		return "", false
	}
	const marker = "for key '"
	i := strings.LastIndex(me.Message, marker)
	if i < 0 {
		return "", true
	}
	name := strings.TrimSuffix(me.Message[i+len(marker):], "'")
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		name = name[dot+1:]
	}
	return name, true
}

// IsLockWait reports whether a row stayed locked by another transaction for too long (1205).
func IsLockWait(err error) bool { return number(err) == errLockWait }

// Unavailable reports whether err says that the database could not work or that nobody knows what it did: such an error
// is never a duplicate, a conflict or "not found", and the same request may be sent again.
func Unavailable(err error) bool {
	if errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrStale) || connectionLost(err) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sql.ErrTxDone) {
		return true
	}
	switch number(err) {
	case errLockWait, errDeadlock, errSnapshotStale, errTooManyConns, errShutdown, errOptionReadOnly, errReadOnlyMode,
		errKilled, errGone, errLost, errQueryTimeout, errConnKilled:
		return true
	}
	return false
}

// connectionLost reports whether the connection broke, so that a statement sent on it may or may not have run.
func connectionLost(err error) bool {
	var netErr net.Error
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &netErr)
}

func number(err error) uint16 {
	var me *mysql.MySQLError
	if errors.As(err, &me) {
		return me.Number
	}
	return 0
}

// retryCause names why a transaction may simply run again from its start, or "" when it may not.
func retryCause(err error) string {
	switch {
	case errors.Is(err, ErrOutcomeUnknown):
		return ""
	case errors.Is(err, ErrStale):
		return "version"
	case number(err) == errDeadlock:
		return "deadlock"
	case number(err) == errSnapshotStale:
		return "snapshot"
	}
	return ""
}

// ExpectOne returns an error unless the statement matched exactly one row. It is for updates that cannot miss; where
// missing means something, read RowsAffected and decide.
func ExpectOne(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if n != 1 {
		return fmt.Errorf("mysql: statement matched %d rows, expected 1", n)
	}
	return nil
}

// Matched reports whether a guarded statement matched its row. Not matching means something: somebody was faster, or the state
// is another one. The caller decides what.
func Matched(res sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}
