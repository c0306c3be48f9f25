package outbox

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/internal/web"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func now() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 999999000, time.UTC) }

func message(id string) Message {
	return Message{ID: id, Topic: "order.paid", Key: "0190", Version: 2, Payload: map[string]any{"b": "é😀'\\", "a": 9007199254740993}}
}

func owe(ctx context.Context, db *mysqldb.DB, m Message) error {
	return db.InTx(ctx, func(tx *sql.Tx) error { return Add(ctx, tx, m, now()) })
}

func count(t *testing.T, db *mysqldb.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM t_outbox").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAMessageIsKeptAsItWasOwed(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	ctx := web.WithRequestID(t.Context(), "req-1", slog.New(slog.DiscardHandler))
	if err := owe(ctx, db, message("m1:o:0190:2")); err != nil {
		t.Fatal(err)
	}
	var (
		id, topic, key, payload, request string
		version                          int
		created                          time.Time
		sent                             sql.NullTime
	)
	err := db.QueryRowContext(ctx, "SELECT msg_id, topic, partition_key, version, payload, request_id, create_time, sent_at FROM t_outbox").
		Scan(&id, &topic, &key, &version, &payload, &request, &created, &sent)
	if err != nil {
		t.Fatal(err)
	}
	if id != "m1:o:0190:2" || topic != "order.paid" || key != "0190" || version != 2 || payload != `{"a":9007199254740993,"b":"é😀'\\"}` ||
		request != "req-1" || !created.Equal(now()) || sent.Valid {
		t.Errorf("%s %s %s %d %s %s %v %v", id, topic, key, version, payload, request, created, sent)
	}
}

func TestAMessageLeavesWithItsTransaction(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	refused := errors.New("refused")
	err := db.InTx(t.Context(), func(tx *sql.Tx) error {
		if err := Add(t.Context(), tx, message("m1"), now()); err != nil {
			return err
		}
		return refused
	})
	if !errors.Is(err, refused) || count(t, db) != 0 {
		t.Errorf("%v, %d messages", err, count(t, db))
	}
}

// B44: one fact, one message, however many say it at once.
func TestOneFactIsOwedOnce(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	errs := make([]error, 50)
	testenv.Together(len(errs), func(i int) { errs[i] = owe(t.Context(), db, message("m1")) })
	done := 0
	for _, err := range errs {
		if err == nil {
			done++
		} else if !mysqldb.IsDuplicate(err, "uk_msg_id") {
			t.Errorf("got %v", err)
		}
	}
	if done != 1 || count(t, db) != 1 {
		t.Errorf("%d owed it, %d messages", done, count(t, db))
	}
	if err := owe(t.Context(), db, message("M1")); err != nil { // B21
		t.Error(err)
	}
}

func TestWhatCannotBeKeptIsAnError(t *testing.T) {
	db := testenv.OpenDB(t, testenv.Database(t))
	for name, m := range map[string]Message{
		"payload is no JSON": {ID: "a", Topic: "t", Key: "k", Payload: func() {}},
		"id too long":        {ID: strings.Repeat("x", 65), Topic: "t", Key: "k"}, // B48
		"id outside ASCII":   {ID: "é", Topic: "t", Key: "k"},
		"key too long":       {ID: "a", Topic: "t", Key: strings.Repeat("x", 65)},
		"payload too long":   {ID: "a", Topic: "t", Key: "k", Payload: strings.Repeat("x", 1<<16)},
	} {
		if err := owe(t.Context(), db, m); err == nil || mysqldb.IsDuplicate(err, "uk_msg_id") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := count(t, db); n != 0 {
		t.Errorf("%d messages", n)
	}
}
