package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"example.com/oncepay/internal/testenv"
)

// B95: the news of a refund's success comes before we have committed what we know ourselves: before the channel's answer to our
// call, while the poller is about to record the same, when its COMMIT or the request's own was never answered. One row, one
// posting, one message, for a part and for the whole.
func TestARefundNoticeBeatsOurOwnCommit(t *testing.T) {
	begin, commit := testenv.Prefix("START TRANSACTION"), testenv.Prefix("COMMIT")
	s := newStack(t)
	s.sku(1, 100, 100)
	mysql := s.instances[0].mysql
	// round runs the job in the background and says when it is over.
	round := func() <-chan struct{} {
		done := make(chan struct{})
		go func() { defer close(done); s.round(0, "refunds.send") }()
		return done
	}
	// known sends the refund and lets it succeed, so that the job's next look brings the news.
	known := func(c call, no string) {
		s.must(http.StatusAccepted, c)
		s.round(0, "refunds.send")
		s.bank(no, "succeed")
		s.advance(time.Minute)
	}
	ways := map[string]func(c call, no string){
		"before the channel's answer": func(c call, no string) {
			s.faults(`{"refund":{"delay_ms":300,"times":1}}`)
			s.must(http.StatusAccepted, c)
			done := round()
			testenv.Eventually(t, setupWait, "the channel has the refund", func() error {
				if s.effects("refund", no) == 0 {
					return fmt.Errorf("it does not know %s", no)
				}
				return nil
			})
			s.tell("refund.succeeded", no, 0)
			<-done
		},
		"before the poller's transaction": func(c call, no string) {
			known(c, no)
			gate := testenv.NewGate(t)
			mysql.On(begin, 1, testenv.Hold(gate))
			done := round()
			gate.WaitEntered(t, 1)
			s.tell("refund.succeeded", no, 0)
			gate.Open()
			<-done
		},
		"the poller's COMMIT is not answered": func(c call, no string) {
			known(c, no)
			mysql.On(commit, 1, testenv.SwallowReply())
			s.round(0, "refunds.send")
			s.tell("refund.succeeded", no, 0)
		},
		"the request's COMMIT is not answered": func(c call, no string) {
			mysql.On(commit, 1, testenv.SwallowReply())
			wantUndecided(t, s.do(c))
			s.round(1, "refunds.send")
			s.tell("refund.succeeded", no, 0)
			if r := s.do(on(1, c)); r.status != http.StatusAccepted || r.replayed != "true" || r.field("status") != "PROCESSING" {
				t.Errorf("the request again: %v; want its 202", r)
			}
		},
	}
	n := 0
	for name, way := range ways {
		for amount, becomes := range map[int64]string{30: "PAID", 100: "REFUNDED"} {
			n++
			orderNo, _ := s.paid(1001)
			no := fmt.Sprintf("R-%d", n)
			way(refundNamed(0, 1001, orderNo, no, amount, key("%s", no)), no)
			s.wantRefund(1001, no, "SUCCESS")
			s.wantStatus(1001, orderNo, becomes)
			s.wantEffects("refund", no, 1)
			s.wantBooked(n)
			if t.Failed() {
				t.Fatalf("%s, %d of 100", name, amount)
			}
		}
	}
	s.wantSound()
}

// B97: a refund that timed out is asked for again under its number, and another of the same amount in the same moment has its
// own. Nothing is matched by amount.
func TestEachRefundKeepsItsOwnNumber(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo, _ := s.paid(1001)
	numbers := []string{"R-1", "R-2"}
	s.faults(`{"refund":{"status":503,"times":1}}`) // of the first that is sent
	for _, no := range numbers {
		s.must(http.StatusAccepted, refundNamed(0, 1001, orderNo, no, 30, key("%s", no)))
	}
	s.round(0, "refunds.send")
	s.wantEffects("refund", "", 1)
	s.advance(10 * time.Second)
	s.round(1, "refunds.send")
	for _, no := range numbers {
		s.wantEffects("refund", no, 1)
	}
	s.bank("R-2", "succeed")
	s.advance(10 * time.Second)
	s.round(0, "refunds.send")
	s.wantRefund(1001, "R-1", "PROCESSING")
	s.wantRefund(1001, "R-2", "SUCCESS")
	s.wantBooked(1)
	s.wantSound()
}

// B94: a channel that never decides is asked with growing pauses, then a person is, even if the first who wants to ask dies over
// it; the refund is never ended here while nobody knows.
func TestARefundNobodyDecidesBecomesAnException(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	orderNo, _ := s.paid(1001)
	s.refund(1001, orderNo, "R-1", 100)
	for _, i := range s.instances {
		i.mysql.On(testenv.Contains("INSERT INTO t_exception"), 1, testenv.CutBefore())
	}
	const looks = 110 // more than the schedule has: 11, then 84 slow ones, then those that were lost
	for i := range looks {
		s.advance(3 * time.Hour) // past any pause of the schedule
		s.round(i, "refunds.send")
	}
	if got := s.exceptions(); len(got) != 1 || got[0] != "refund_unresolved" {
		t.Errorf("exceptions %v; want one refund_unresolved", got)
	}
	s.wantRefund(1001, "R-1", "PROCESSING")
	s.wantEffects("refund", "R-1", 1)
	s.bank("R-1", "succeed")
	s.tell("refund.succeeded", "R-1", 0) // the notice comes after all
	s.wantStatus(1001, orderNo, "REFUNDED")
	s.wantSound()
}

// B12, B94: the process that sends a refund is killed, after the channel took it and cut the line; and an instance dies with the
// channel's "success" in hand. Another goes on under the same number; one effect, one booking.
func TestADeadSenderLosesNoRefund(t *testing.T) {
	dsn := testenv.Database(t)
	s := newStackOn(t, dsn, testenv.RedisURL(t))
	s.sku(1, 100, 10)
	orderNo, _ := s.paid(1001)
	s.faults(`{"refund":{"drop_after":true,"times":1}}`)
	number, process := s.startProcess(dsn, "MOCKPAY_URL="+s.channel.url)
	s.must(http.StatusAccepted, refundNamed(number, 1001, orderNo, "R-1", 100, key("R-1"))) // which wakes the process's job
	testenv.Eventually(t, setupWait, "the channel has the refund", func() error {
		if s.effects("refund", "R-1") == 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.advance(time.Minute)
	s.round(0, "refunds.send")
	s.wantRefund(1001, "R-1", "PROCESSING")
	s.bank("R-1", "succeed")
	s.advance(time.Minute)
	gate := testenv.NewGate(t)
	s.instances[0].mysql.On(testenv.Prefix("START TRANSACTION"), 1, testenv.Hold(gate))
	done := make(chan struct{})
	go func() { defer close(done); s.round(0, "refunds.send") }()
	gate.WaitEntered(t, 1)
	s.instances[0].die()
	<-done
	s.advance(time.Hour)
	s.round(1, "refunds.send")
	s.instances[0].revive()
	s.wantRefund(1001, "R-1", "SUCCESS")
	s.wantStatus(1001, orderNo, "REFUNDED")
	s.wantEffects("refund", "R-1", 1)
	s.wantBooked(1)
	s.wantSound()
}

// B16, B19: an instance dies at the COMMIT that accepts a refund. The same request again has one refund, before or after.
func TestADeadInstanceStrandsNoRefund(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 10)
	for i, b := range barriers()[2:] { // the others are those of a lock, which a refund does not take
		orderNo, _ := s.paid(1001)
		c := refundCall(0, 1001, orderNo, 60, key("K%d", i))
		s.dieAt(t, b, c)
		r := s.do(on(1, c))
		if r.status != http.StatusAccepted || r.replayed != fmt.Sprint(b.done) {
			t.Errorf("%s: %v; want 202, replayed: %v", b.name, r, b.done)
		}
		s.instances[0].revive()
		wantReplay(t, s.do(on(0, c)), r)
	}
	s.round(1, "refunds.send")
	s.wantEffects("refund", "", 2)
	s.wantSound()
}

// B56, B84: the connection breaks at any write of a booking, before or after it ran. The notice is not acknowledged, comes again,
// and the account moves once.
func TestABookingCutAnywhereIsBookedOnce(t *testing.T) {
	s := newStack(t)
	s.sku(1, 100, 100)
	n := 0
	for event, commands := range map[string][]string{
		"payment.succeeded": {"UPDATE t_order", "INSERT INTO t_trade", "UPDATE t_payment", "INSERT INTO t_ledger_entry", "INSERT INTO t_outbox", "INSERT INTO t_channel_notice", "COMMIT"},
		"refund.succeeded":  {"UPDATE t_refund", "UPDATE t_payment", "UPDATE t_order", "INSERT INTO t_ledger_entry", "INSERT INTO t_outbox", "COMMIT"},
	} {
		for _, command := range commands {
			for fault, act := range map[string]testenv.Action{"lost": testenv.CutBefore(), "no reply to": testenv.SwallowReply()} {
				n++
				orderNo := s.order(1001, 1)
				payNo := s.attempt(1001, orderNo, "mockpay")
				s.buyerPays(payNo)
				notice := s.noticeOf("payment.succeeded", payNo)
				if event == "refund.succeeded" {
					s.notify(1, notice)
					no := fmt.Sprintf("R-%d", n)
					s.refund(1001, orderNo, no, 100)
					s.bank(no, "succeed")
					notice = s.refundNoticeOf(event, no)
				}
				rule := s.instances[0].mysql.On(testenv.Contains(command), 1, act)
				wantUndecided(t, s.notify(0, notice))
				rule.Stop()
				if r := s.notify(0, notice); string(r.body) != "success" {
					t.Errorf("the notice again: %v", r)
				}
				s.wantStatus(1001, orderNo, map[string]string{"payment.succeeded": "PAID", "refund.succeeded": "REFUNDED"}[event])
				if t.Failed() {
					t.Fatalf("%s, %s %q", event, fault, command)
				}
			}
		}
	}
	if entries := s.count("SELECT COUNT(*) FROM t_ledger_entry WHERE kind = 'pay'"); entries != 2*n {
		t.Errorf("%d entries for %d payments", entries, n)
	}
	s.wantSound()
}
