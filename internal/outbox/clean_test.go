package outbox

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
)

// left returns the ids of the messages that are there.
func (f *fixture) left() []string {
	f.t.Helper()
	scan := func(row mysqldb.Scanner) (id string, err error) {
		err = row.Scan(&id)
		return id, err
	}
	list, err := mysqldb.Collect(scan)(f.db.QueryContext(f.t.Context(), "SELECT msg_id FROM t_outbox ORDER BY id"))
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}

func (f *fixture) exec(query string, args ...any) {
	f.t.Helper()
	if _, err := f.db.ExecContext(f.t.Context(), query, args...); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) clean() {
	f.t.Helper()
	if err := f.relay().Clean(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

func TestOnlySentSettledAndOldMessagesAreRemoved(t *testing.T) {
	f := newFixture(t)
	f.owe(keyA, 1, 2, 3, 4)
	sent, settled := "UPDATE t_outbox SET sent_at = create_time WHERE version IN (?, ?)", "UPDATE t_outbox SET next_look_at = NULL WHERE version IN (?, ?)"
	f.exec(sent, 1, 2)
	f.exec(settled, 1, 3)
	f.pass(Retention - time.Microsecond)
	f.clean()
	if got, want := f.left(), ids(keyA, 1, 2, 3, 4); !slices.Equal(got, want) {
		t.Errorf("before the end of its retention: %q are left, want %q", got, want)
	}
	f.pass(time.Microsecond)
	f.owe(keyA, 5) // young
	f.exec(sent, 5, 5)
	f.exec(settled, 5, 5)
	f.clean()
	if got, want := f.left(), ids(keyA, 2, 3, 4, 5); !slices.Equal(got, want) {
		t.Errorf("%q are left, want %q", got, want)
	}
}

func TestAMessageThatIsUnsettledMeanwhileStays(t *testing.T) {
	f := newFixture(t)
	f.owe(keyA, 1)
	f.exec("UPDATE t_outbox SET sent_at = create_time, next_look_at = NULL")
	f.pass(Retention)
	proxy, dsn := testenv.BehindMySQLProxy(t, f.dsn)
	r, done, before := f.relayAt(dsn), make(chan error, 1), testenv.NewGate(t)
	proxy.On(testenv.Contains("DELETE FROM t_outbox"), 1, testenv.Hold(before))
	go func() { done <- r.Clean(t.Context()) }()
	before.WaitEntered(t, 1)
	f.exec("UPDATE t_outbox SET next_look_at = create_time")
	before.Open()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got, want := f.left(), ids(keyA, 1); !slices.Equal(got, want) {
		t.Errorf("%q are left, want %q", got, want)
	}
}

func TestManyOldMessagesAreRemovedInSeveralBatches(t *testing.T) {
	f := newFixture(t)
	for i := range 5 {
		f.owe(fmt.Sprint("key-", i), upTo(cleanBatch/2)...)
	}
	f.exec("UPDATE t_outbox SET sent_at = create_time, next_look_at = NULL")
	f.pass(Retention)
	f.clean()
	if left := f.left(); len(left) != 0 {
		t.Errorf("%d are left", len(left))
	}
}
