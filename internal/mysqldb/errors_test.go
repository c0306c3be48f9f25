package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
)

func serverError(number uint16, message string) error {
	return &mysql.MySQLError{Number: number, Message: message}
}

// B59: "could not work" and "nobody knows" are told from a decision, bare and wrapped.
func TestUnavailableIsWhatDecidedNothing(t *testing.T) {
	timeout := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	for err, want := range map[error]bool{
		serverError(1205, "Lock wait timeout exceeded"):      true,
		serverError(1213, "Deadlock found"):                  true,
		serverError(1020, "Record has changed"):              true,
		serverError(1040, "Too many connections"):            true,
		serverError(1053, "Server shutdown in progress"):     true,
		serverError(1290, "--read-only"):                     true,
		serverError(1317, "Query execution was interrupted"): true,
		serverError(1836, "Running in read-only mode"):       true,
		serverError(1927, "Connection was killed"):           true,
		serverError(2006, "MySQL server has gone away"):      true,
		serverError(2013, "Lost connection"):                 true,
		serverError(3024, "maximum statement time exceeded"): true,
		context.Canceled:         true,
		context.DeadlineExceeded: true,
		driver.ErrBadConn:        true,
		mysql.ErrInvalidConn:     true,
		sql.ErrTxDone:            true,
		sql.ErrConnDone:          true,
		io.EOF:                   true,
		io.ErrUnexpectedEOF:      true,
		net.ErrClosed:            true,
		timeout:                  true,
		&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}: true,
		syscall.ECONNRESET: true,
		ErrOutcomeUnknown:  true,
		ErrStale:           true,
		serverError(1062, "Duplicate entry 'x' for key 'uk_x'"): false,
		serverError(1048, "Column cannot be null"):              false,
		serverError(1264, "Out of range value"):                 false,
		serverError(1406, "Data too long"):                      false,
		serverError(1452, "foreign key constraint fails"):       false,
		serverError(4025, "CONSTRAINT failed"):                  false,
		serverError(1146, "Table does not exist"):               false,
		sql.ErrNoRows: false,
		errors.New("mysql: statement matched 0 rows"): false,
	} {
		for _, e := range []error{err, fmt.Errorf("insert order: %w", err), errors.Join(errors.New("x"), fmt.Errorf("a: %w", err))} {
			if got := Unavailable(e); got != want {
				t.Errorf("%v: unavailable %v, want %v", e, got, want)
			}
			if IsDuplicate(e, "uk_y") || want && IsDuplicate(e, "uk_x") {
				t.Errorf("%v is taken for a duplicate", e)
			}
		}
	}
	if Unavailable(nil) {
		t.Error("no error is unavailable")
	}
}

// B45: a duplicate is told by the name of its index, in MariaDB's form and in MySQL 8's; the value may look like one.
func TestADuplicateIsTheNamedIndexesAndNoOther(t *testing.T) {
	for message, index := range map[string]string{
		"Duplicate entry 'x' for key 'uk_biz_token'":                                  "uk_biz_token",
		"Duplicate entry 'x' for key 't_order.uk_biz_token'":                          "uk_biz_token",
		"Duplicate entry '1-o''k' for key 'uk_caller_key'":                            "uk_caller_key",
		"Duplicate entry 'a' for key 'uk_order_no'' for key 'uk_biz_token'":           "uk_biz_token",
		"Duplicate entry 'x' for key 't.uk_order_no'' for key 't_order.uk_biz_token'": "uk_biz_token",
		"Duplicate entry 'it's' for key 'PRIMARY'":                                    "PRIMARY",
		"Duplicate entry 'a.b' for key 't_sku.PRIMARY'":                               "PRIMARY",
		"Duplicate entry '' for key 'uk_msg_id'":                                      "uk_msg_id",
	} {
		for _, e := range []error{serverError(1062, message), fmt.Errorf("insert: %w", serverError(1062, message))} {
			for _, name := range []string{"uk_biz_token", "uk_order_no", "uk_caller_key", "uk_msg_id", "PRIMARY", "", "biz_token", "uk"} {
				if got, want := IsDuplicate(e, name), name == index; got != want {
					t.Errorf("%s: duplicate of %q is %v", message, name, got)
				}
			}
		}
	}
	for _, err := range []error{
		nil, sql.ErrNoRows, errors.New("Duplicate entry 'x' for key 'uk_x'"), serverError(1062, "Doppelter Eintrag 'x'"),
		serverError(1061, "Duplicate key name 'uk_x'"), serverError(1213, "Duplicate entry 'x' for key 'uk_x'"),
	} {
		if IsDuplicate(err, "uk_x") {
			t.Errorf("%v is taken for a duplicate of uk_x", err)
		}
	}
}

func TestLockWaitIs1205Only(t *testing.T) {
	if !IsLockWait(fmt.Errorf("x: %w", serverError(1205, ""))) || IsLockWait(serverError(1213, "")) || IsLockWait(nil) || IsLockWait(context.DeadlineExceeded) {
		t.Error("IsLockWait is wrong")
	}
}

func TestOnlyCollisionsRunAgain(t *testing.T) {
	for err, want := range map[error]string{
		serverError(1213, ""): "deadlock", serverError(1020, ""): "snapshot", ErrStale: "version",
		serverError(1205, ""): "", serverError(1062, ""): "", serverError(2013, ""): "", driver.ErrBadConn: "", context.Canceled: "",
		ErrOutcomeUnknown: "", fmt.Errorf("%w: %w", ErrOutcomeUnknown, serverError(1213, "")): "",
	} {
		if got := retryCause(fmt.Errorf("wrapped: %w", err)); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	if retryCause(nil) != "" {
		t.Error("success runs again")
	}
}

type result struct {
	rows int64
	err  error
}

func (r result) LastInsertId() (int64, error) { return 0, nil }
func (r result) RowsAffected() (int64, error) { return r.rows, r.err }

// B49, B102: an update that cannot miss and does is an error.
func TestExpectOneWantsExactlyOneRow(t *testing.T) {
	if err := ExpectOne(result{rows: 1}, nil); err != nil {
		t.Error(err)
	}
	for _, err := range []error{ExpectOne(result{rows: 0}, nil), ExpectOne(result{rows: 2}, nil), ExpectOne(result{rows: 1, err: io.EOF}, nil)} {
		if err == nil {
			t.Error("accepted")
		}
	}
	if err := ExpectOne(nil, io.EOF); err != io.EOF {
		t.Errorf("the statement's own error is lost: %v", err)
	}
}

// B55: a server that shows another value, or does not show the setting at all, is refused, with all faults in one message.
func TestEverySettingIsCompared(t *testing.T) {
	good := map[string]string{
		"sql_mode": sqlMode + ",ONLY_FULL_GROUP_BY", "time_zone": "+00:00", "tx_isolation": "READ-COMMITTED", "autocommit": "ON",
		"innodb_lock_wait_timeout": "3", "character_set_client": "utf8mb4", "character_set_connection": "utf8mb4",
		"character_set_results": "utf8mb4", "unique_checks": "ON", "completion_type": "NO_CHAIN", "wait_timeout": "1",
	}
	if err := settingFaults(good); err != nil {
		t.Fatal(err)
	}
	mysql8 := maps.Clone(good)
	mysql8["transaction_isolation"] = good["tx_isolation"]
	delete(mysql8, "tx_isolation")
	if err := settingFaults(mysql8); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"sql_mode": "STRICT_TRANS_TABLES", "time_zone": "SYSTEM", "tx_isolation": "REPEATABLE-READ", "autocommit": "OFF",
		"innodb_lock_wait_timeout": "50", "character_set_client": "gbk", "character_set_connection": "latin1",
		"character_set_results": "latin1", "unique_checks": "OFF", "completion_type": "CHAIN",
	} {
		one := maps.Clone(good)
		one[name] = bad
		if err := settingFaults(one); err == nil || !strings.Contains(err.Error(), name) || strings.Count(err.Error(), "\n") != 0 {
			t.Errorf("%s=%s: %v", name, bad, err)
		}
		delete(one, name)
		if err := settingFaults(one); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not shown: %v", name, err)
		}
	}
	if err := settingFaults(nil); err == nil || strings.Count(err.Error(), "the service needs") != 10 {
		t.Errorf("want all ten faults: %v", err)
	}
}
