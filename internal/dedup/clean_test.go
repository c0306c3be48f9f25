package dedup

import (
	"fmt"
	"testing"
	"time"

	"example.com/oncepay/internal/outbox"
)

// Only what is finished, old, and gone from the outbox is removed; more than one batch of it at once, and however much of what stays
// is older.
func TestOnlyWhatNobodyCanSendAnyMoreIsRemoved(t *testing.T) {
	if Window <= outbox.Retention {
		t.Errorf("a message is forgotten after %s and can be sent for %s", Window, outbox.Retention)
	}
	f := newFixture(t)
	add := func(id string, status Status, created, done time.Time) {
		t.Helper()
		if _, err := f.DB.Exec(`INSERT INTO t_message_dedup (consumer, msg_id, topic, msg_key, status, tries, create_time, done_time)
			VALUES ('points', ?, ?, '', ?, 0, ?, ?)`, id, topic, status, created, done); err != nil {
			t.Fatal(err)
		}
	}
	old := f.clock().Add(-Window)
	f.owe("sendable")
	add("sendable", Done, old, old)
	for i := range cleanBatch {
		add(fmt.Sprint("long waiting ", i), Done, old, f.clock())
	}
	for i := range cleanBatch + 1 {
		add(fmt.Sprint("useless ", i), Done, old, old)
	}
	add("discarded", Discarded, old, old)
	for _, status := range []Status{Waiting, Dead, Processing} {
		add("kept "+statusNames[status], status, old, old)
	}
	add("kept young", Done, old.Add(time.Microsecond), old.Add(time.Microsecond))
	if err := f.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.wantCount(0, "SELECT COUNT(*) FROM t_message_dedup WHERE msg_id LIKE 'useless%' OR msg_id = 'discarded'")
	f.wantCount(4, "SELECT COUNT(*) FROM t_message_dedup WHERE msg_id LIKE 'kept%'")
	f.wantCount(cleanBatch, "SELECT COUNT(*) FROM t_message_dedup WHERE msg_id LIKE 'long%'")
	f.wantCount(1, "SELECT COUNT(*) FROM t_message_dedup WHERE msg_id = 'sendable'")
}
