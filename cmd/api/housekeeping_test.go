package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/dedup"
	"example.com/oncepay/internal/mockpay"
	"example.com/oncepay/internal/outbox"
)

// outlive makes the callers' bearer tokens last as long as a test moves its clock.
func (s *stack) outlive(d time.Duration, callers ...auth.Caller) {
	s.t.Helper()
	for _, c := range callers {
		signed, err := auth.Sign(config.DevJWTSecret, c, time.Now().Add(d))
		if err != nil {
			s.t.Fatal(err)
		}
		s.tokens[c] = "Bearer " + signed
	}
}

// lasting are the tables that no job may take a row out of: money, goods, grants, and what was decided about them.
var lasting = []string{
	"t_order", "t_order_history", "t_payment", "t_trade", "t_refund", "t_ledger_entry", "t_stock_movement", "t_channel_notice",
	"t_exception", "t_point_entry", "t_bill", "t_reconciliation", "t_audit",
}

// housework lets an hour pass and every job of both instances run, three times.
func (s *stack) housework() {
	s.t.Helper()
	for i := range 3 {
		for _, job := range jobNames(s.instances[0].svc.jobs.Jobs) {
			s.round(i, job)
		}
		s.advance(time.Hour)
	}
}

// stories are orders at all the points where something may still come.
type stories struct {
	dead, waiting, refunding, unknown, unheard string // by what their message, refund or payment is
	refundNo                                   string
	told                                       mockpay.Notice // applied long ago
}

// beginStories leaves the channel without answers to queries, and Redis gone.
func (s *stack) beginStories() (st stories) {
	s.t.Helper()
	st.dead, _ = s.paid(1001)
	s.poison(st.dead)
	st.waiting, _ = s.paid(1002)
	s.exec("UPDATE t_outbox SET payload = CONCAT('!', payload) WHERE topic = 'order.paid' AND partition_key = ?", st.waiting)
	_, st.told = s.offered(1003)
	wantAck(s.t, s.notify(0, st.told))
	st.refunding, st.refundNo = s.refunding(1004, 30000)
	_, wrong := s.offered(1005)
	wrong.Amount--
	wantAck(s.t, s.notify(0, wrong))
	s.round(0, "outbox.relay")
	s.eventually(0, unsent)
	for _, i := range s.instances {
		i.redis.Down()
	}
	st.unheard, _ = s.paid(1007)
	st.unknown = s.order(1006, 1)
	s.faults(`{"charge":{"drop_after":true},"query":{"status":500}}`)
	s.must(http.StatusAccepted, payCall(0, 1006, st.unknown, "mockpay", key("K1")))
	s.advance(outbox.LookAfter)
	s.consume()
	return st
}

// endStories brings each to the end that it would have had at once.
func (s *stack) endStories(st stories) {
	s.t.Helper()
	s.bank(st.refundNo, "succeed")
	s.tell("refund.succeeded", st.refundNo, 0)
	s.wantStatus(1004, st.refunding, "REFUNDED")
	s.settle(s.text("SELECT pay_no FROM t_payment WHERE order_no = ?", st.unknown))
	s.wantStatus(1006, st.unknown, "PAID")
	s.cure(st.dead)
	s.cure(st.waiting)
	s.must(http.StatusOK, decideLetter(0, s.deadLetters()[0], "replay"))
	s.advance(time.Hour)
	s.round(1, "messages.retry")
	s.consume()
	wantAck(s.t, s.notify(1, st.told))
	s.listens(0)
	s.round(1, "outbox.relay")
	s.untilHits("points", "replayed", 1) // what was never sent, and took effect by rescue
	for user, points := range map[int64][2]int{1001: {300, 1}, 1002: {300, 1}, 1003: {300, 1}, 1004: {0, 2}, 1006: {300, 1}, 1007: {300, 1}} {
		s.wantEarned(user, points[0], points[1])
	}
}

// B107: long after every retention the jobs have run over orders that are paid, UNKNOWN, being refunded or under an exception, over dead
// letters and over messages that wait or were never sent. What is over is gone; what money or a retry needs is there, and goes on.
func TestHousekeepingTakesOnlyWhatIsOver(t *testing.T) {
	s := newStack(t)
	long := 2 * dedup.Window
	s.outlive(2*long, operator, buyer(1001), buyer(1002), buyer(1003), buyer(1004), buyer(1005), buyer(1006), buyer(1007))
	s.sku(1, 30000, 100)
	st := s.beginStories()
	before := make(map[string][2]int)
	for _, table := range lasting {
		before[table] = [2]int{s.count("SELECT COUNT(*) FROM " + table), s.count("SELECT COALESCE(MAX(id), 0) FROM " + table)}
	}
	s.advance(long)
	s.housework()
	for table, rows := range before {
		if n := s.count("SELECT COUNT(*) FROM "+table+" WHERE id <= ?", rows[1]); n != rows[0] {
			t.Errorf("%d of %d rows of %s are left", n, rows[0], table)
		}
	}
	needed := " IN ('" + strings.Join([]string{st.dead, st.waiting, st.unheard, st.unknown}, "', '") + "')"
	for query, want := range map[string]int{
		"SELECT COUNT(*) FROM t_idempotency_key":                          0,
		"SELECT COUNT(*) FROM t_outbox":                                   5, // of what waits, is dead, or was not sent
		"SELECT COUNT(*) FROM t_outbox WHERE partition_key" + needed:      5,
		"SELECT COUNT(*) FROM t_message_dedup":                            3,
		"SELECT COUNT(*) FROM t_message_dedup WHERE msg_key" + needed:     3,
		"SELECT COUNT(*) FROM t_exception WHERE kind = 'amount_mismatch'": 1,
	} {
		if n := s.count(query); n != want {
			t.Errorf("%s: %d, want %d", query, n, want)
		}
	}
	for _, i := range s.instances {
		i.redis.Up()
	}
	s.faults(`{}`)
	s.endStories(st)
	s.wantSound()
}
