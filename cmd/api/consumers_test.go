package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/notify"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/testenv"
)

// Consumers that fail, messages that always do, and who is told of what.

// stumbles makes an instance's points fail once, behind their effect.
func (s *stack) stumbles(on int, fail func() error) {
	points := &s.instances[on].svc.messages.Consumers[0]
	handle, failed := points.Handle, false
	points.Handle = func(ctx context.Context, tx *sql.Tx, m outbox.Stored) (string, error) {
		outcome, err := handle(ctx, tx, m)
		if err == nil && !failed {
			failed = true
			err = fail()
		}
		return outcome, err
	}
}

// B84: a consumer fails behind its mark. Mark and effect are one transaction and go together, so that the message is worked on to its
// end: at once after a deadlock, which is no failure of the message, and else with its next try, on any instance.
func TestAFailedConsumerLeavesNoMark(t *testing.T) {
	for name, c := range map[string]struct {
		fail  func() error
		tries int
	}{
		"error":     {func() error { return errors.New("broken") }, 1},
		"panic":     {func() error { panic("broken") }, 1},
		"lock wait": {func() error { return &mysql.MySQLError{Number: 1205} }, 1},
		"deadlock":  {func() error { return &mysql.MySQLError{Number: 1213} }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 30000, 10)
			s.paid(1001)
			s.stumbles(0, c.fail)
			s.advance(outbox.LookAfter)
			s.round(0, "messages.rescue")
			s.wantEarned(1001, 300*(1-c.tries), 1-c.tries)
			if n := s.count("SELECT tries FROM t_message_dedup WHERE status = ?", 1+c.tries); n != c.tries {
				t.Errorf("%d failed tries, want %d", n, c.tries)
			}
			s.advance(time.Second)
			s.round(1, "messages.retry")
			s.wantEarned(1001, 300, 1)
			s.wantSound()
		})
	}
}

// commandsOf returns the different commands that come through a proxy while something is done, cut before their values.
func commandsOf(proxy *testenv.Proxy, do func()) (commands []string) {
	const length = 44 // enough to tell two statements apart
	proxy.ClearLog()
	do()
	for _, e := range proxy.Log() {
		if command := e.Cmd[:min(length, len(e.Cmd))]; !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	return commands
}

// B84: any single command of a consumer is lost, or carried out without its reply, COMMIT's too. The redelivery on the other instance
// or the next try brings the message to its end: one effect here, and one key outside.
func TestAnyLostCommandOfAConsumerIsMended(t *testing.T) {
	endpoint := newReceiver(t)
	endpoint.calm.Store(true)
	s := newStack(t, "NOTIFY_URL="+endpoint.URL)
	s.sku(1, 30000, 1000)
	proxy, users := s.instances[0].mysql, 0
	message := func() outbox.Stored {
		users++
		orderNo, _ := s.paid(int64(1000 + users))
		return s.owed(orderNo)[0]
	}
	for number, consumer := range s.instances[0].svc.messages.Consumers {
		deliver := func(on int, m outbox.Stored) error {
			messages := s.instances[on].svc.messages
			return messages.Deliver(context.Background(), messages.Consumers[number], m)
		}
		healthy := message()
		for _, command := range commandsOf(proxy, func() { _ = deliver(0, healthy) }) {
			for fault, act := range map[string]testenv.Action{"lost": testenv.CutBefore(), "no reply to": testenv.SwallowReply()} {
				m := message()
				rule := proxy.On(testenv.Prefix(command), 1, act)
				first := deliver(0, m)
				rule.Stop()
				if err := deliver(1, m); err != nil || rule.Hits() != 1 {
					t.Errorf("the redelivery: %v; the rule met %d commands", err, rule.Hits())
				}
				s.advance(consumerLease) // of a run that did not hear of its own end
				s.round(1, "messages.retry")
				if s.count("SELECT COUNT(*) FROM t_message_dedup WHERE consumer = ? AND msg_id = ? AND status = 1", consumer.Name, m.ID) != 1 || t.Failed() {
					t.Fatalf("%s, %s %q (%v): the message is not done", consumer.Name, fault, command, first)
				}
			}
		}
	}
	if users < 20 {
		t.Errorf("only %d messages; a delivery has some ten commands", users)
	}
	s.advance(outbox.LookAfter)
	s.consume()
	for u := range users {
		s.wantEarned(int64(1001+u), 300, 1)
	}
	endpoint.mu.Lock()
	if len(endpoint.effects) != users || endpoint.effects[""] != 0 {
		t.Errorf("%d keys outside, want one for each of %d orders", len(endpoint.effects), users)
	}
	endpoint.mu.Unlock()
	s.wantSound()
}

// deadLetters lists the dead letters' ids as an operator sees them.
func (s *stack) deadLetters() (ids []int64) {
	s.t.Helper()
	var list struct {
		Data []struct {
			ID int64 `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(s.must(http.StatusOK, call{as: operator, path: "/v1/ops/dead-letters"}).body, &list); err != nil {
		s.t.Fatal(err)
	}
	for _, letter := range list.Data {
		ids = append(ids, letter.ID)
	}
	return ids
}

// decideLetter describes an operator's decision, "replay" or "discard", about a dead letter.
func decideLetter(on int, id int64, verb string) call {
	return call{on: on, as: operator, method: http.MethodPost, path: fmt.Sprintf("/v1/ops/dead-letters/%d/%s", id, verb)}
}

// B111: a message that always fails is given up with one alarm, while another order's goes through. Twenty operators decide at once:
// the decision is made once and on record once, whatever each of them wanted.
func TestADeadLetterIsDecidedOnce(t *testing.T) {
	for name, verbs := range map[string][]string{"replay": {"replay"}, "discard": {"discard"}, "both": {"replay", "discard"}} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t)
			s.sku(1, 30000, 10)
			orderNo, _ := s.paid(1001)
			s.paid(1002)
			s.poison(orderNo)
			s.wantEarned(1002, 300, 1)
			letters := s.deadLetters()
			if len(letters) != 1 || fmt.Sprint(s.exceptions()) != "[dead_letter]" || s.alarms(exception.DeadLetter) != 1 {
				t.Fatalf("dead letters %v, exceptions %v, %d alarms; want one of each", letters, s.exceptions(), s.alarms(exception.DeadLetter))
			}
			s.cure(orderNo)
			replies := s.all(20, func(i int) call { return decideLetter(i, letters[0], verbs[i%len(verbs)]) })
			if n := tally(replies)["200 "]; n != len(replies) {
				t.Errorf("%v; want 200 from each", tally(replies))
			}
			replayed := s.count("SELECT COUNT(*) FROM t_audit WHERE action = 'dead_letter.replay'")
			discarded := s.count("SELECT COUNT(*) FROM t_audit WHERE action = 'dead_letter.discard'")
			if replayed+discarded != 1 || name == "replay" && replayed == 0 || name == "discard" && discarded == 0 {
				t.Errorf("%d replays and %d discards on record, want one decision", replayed, discarded)
			}
			s.advance(30 * time.Minute)
			for i := range s.instances {
				s.round(i, "messages.retry")
				s.round(i, "messages.rescue")
			}
			s.wantEarned(1001, 300*replayed, replayed)
			if letters, open := s.deadLetters(), s.exceptions(); len(letters)+len(open) != 0 {
				t.Errorf("dead letters %v, exceptions %v; want none any more", letters, open)
			}
			s.wantSound()
		})
	}
}

// A replay of what still fails is given up again, on the letter and the exception that are there.
func TestAReplayThatFailsIsTheSameDeadLetter(t *testing.T) {
	s := newStack(t)
	s.sku(1, 30000, 10)
	orderNo, _ := s.paid(1001)
	s.poison(orderNo)
	before := s.deadLetters()
	s.must(http.StatusOK, decideLetter(0, before[0], "replay"))
	if letters := s.deadLetters(); len(letters) != 0 {
		t.Errorf("dead letters %v while the message is tried again, want none", letters)
	}
	for range 12 { // tries
		s.advance(30 * time.Minute)
		s.round(1, "messages.retry")
	}
	if letters := s.deadLetters(); fmt.Sprint(letters) != fmt.Sprint(before) || fmt.Sprint(s.exceptions()) != "[dead_letter]" {
		t.Errorf("dead letters %v, exceptions %v; want %v and one", letters, s.exceptions(), before)
	}
	s.must(http.StatusOK, decideLetter(0, before[0], "discard"))
	s.wantEarned(1001, 0, 0)
	s.wantSound()
}

// A consumer that is added is told of what happens from then on, also when the broker still has older messages. An instance without it
// ends nothing for the others, and Redis flushed loses nothing; by name a person ends it.
func TestASubscriptionBeginsAndEnds(t *testing.T) {
	endpoint := newReceiver(t)
	endpoint.calm.Store(true)
	dsn, redisURL := testenv.Database(t), testenv.RedisURL(t)
	s := newStackOn(t, dsn, redisURL)
	s.sku(1, 30000, 10)
	s.paid(1001)
	s.round(0, "outbox.relay")
	env := []string{"MOCKPAY_URL=" + s.channel.url, "NOTIFY_URL=" + endpoint.URL}
	for i := range s.instances {
		s.instances[i] = newInstance(t, dsn, redisURL, env...)
	}
	stop := s.listens(0)
	s.paid(1002)
	s.round(0, "outbox.relay")
	s.untilHits("points", "passed", 2)
	s.untilHits("notify", "passed", 1)
	stop()
	s.advance(outbox.LookAfter)
	s.consume()
	if calls := endpoint.calls(); calls != 1 {
		t.Errorf("%d calls, want one: of the order that was paid afterwards", calls)
	}
	newInstance(t, dsn, redisURL, env[0]) // configured without it
	s.paid(1003)
	s.round(0, "outbox.relay")
	if err := testenv.OpenRedis(t, redisURL).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.advance(time.Minute)
	s.consume()
	if calls := endpoint.calls(); calls != 2 {
		t.Errorf("%d calls, want two", calls)
	}
	var said bytes.Buffer
	if err := run(t.Context(), []string{"forget", "-consumer", "notify"}, func(name string) string {
		return map[string]string{"MYSQL_DSN": dsn, "REDIS_URL": redisURL}[name]
	}, &said, io.Discard); err != nil || !strings.Contains(said.String(), "notify is owed no messages") {
		t.Errorf("forget: %q, %v", said.String(), err)
	}
	s.paid(1004)
	s.advance(time.Minute)
	s.consume()
	for user := range int64(4) {
		s.wantEarned(1001+user, 300, 1)
	}
	if n := s.count("SELECT COUNT(*) FROM t_subscription WHERE consumer = 'notify'"); n != 0 || endpoint.calls() != 2 {
		t.Errorf("%d subscriptions and %d calls of a consumer that is gone, want none and 2", n, endpoint.calls())
	}
	s.wantSound()
}

// delivery is one call of the endpoint.
type delivery struct {
	header http.Header
	body   string
}

// hook is an endpoint that does with its calls, one after the other, what it is told, and afterwards answers 200.
type hook struct {
	mu    sync.Mutex
	calls []delivery
}

func (h *hook) seen() []delivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

func newHook(t *testing.T, answers ...http.HandlerFunc) (h *hook, url string) {
	t.Helper()
	h = &hook{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		h.mu.Lock()
		n := len(h.calls)
		h.calls = append(h.calls, delivery{r.Header, string(body)})
		h.mu.Unlock()
		if n < len(answers) {
			answers[n](w, r)
		}
	}))
	t.Cleanup(server.Close)
	return h, server.URL
}

// genuine checks a call as any receiver of Standard Webhooks would.
func (d delivery) genuine(now time.Time) error {
	id, timestamp := d.header.Get("webhook-id"), d.header.Get("webhook-timestamp")
	at, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || now.Sub(time.Unix(at, 0)).Abs() > 5*time.Minute {
		return fmt.Errorf("timestamp %q at %s", timestamp, now)
	}
	secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(config.DevNotifySecret, "whsec_"))
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(id + "." + timestamp + "." + d.body))
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); d.header.Get("webhook-signature") != want {
		return fmt.Errorf("signature %q, want %q", d.header.Get("webhook-signature"), want)
	}
	if id == "" || d.header.Get("Idempotency-Key") != id {
		return fmt.Errorf("id %q, key %q; want one", id, d.header.Get("Idempotency-Key"))
	}
	return nil
}

// The endpoint answers too late, with 500, and not at all; each further call is the same under the same key, signed anew. Once it has
// answered 200 it is not called again, and an order that meets no fault is told of once.
func TestTheEndpointIsToldOfAnOrderUnderOneKey(t *testing.T) {
	h, url := newHook(t,
		func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	)
	s := newStack(t, "NOTIFY_URL="+url)
	s.sku(1, 30000, 10)
	faulty, _ := s.paid(1001)
	s.advance(outbox.LookAfter)
	start := time.Now()
	s.round(0, "messages.rescue")
	if took := time.Since(start); took < notify.Timeout || took > 2*notify.Timeout {
		t.Errorf("an endpoint that does not answer took %s, want the %s it has", took, notify.Timeout)
	}
	for i := range 5 {
		s.advance(10 * time.Second)
		s.round(i, "messages.retry")
	}
	calm, _ := s.paid(1002)
	s.advance(time.Minute)
	for i := range 2 {
		s.round(i, "messages.rescue")
		s.round(i, "messages.retry")
	}
	told := make(map[string]int)
	for _, d := range h.seen() {
		if err := d.genuine(s.instances[0].clock.now()); err != nil {
			t.Error(err)
		}
		told[d.header.Get("webhook-id")+d.body]++
	}
	if calls := fmt.Sprint(told[s.told(faulty)], told[s.told(calm)], len(h.seen())); calls != "4 1 5" {
		t.Errorf("calls of the faulty order, the calm one and in all: %s; want 4 1 5\n%v", calls, told)
	}
	s.wantSound()
}

// told is the id and the body under which an order is told of.
func (s *stack) told(orderNo string) string {
	s.t.Helper()
	m := s.owed(orderNo)[0]
	return m.ID + fmt.Sprintf(`{"id":%q,"type":"order.paid","created_at":%q,"data":%s}`, m.ID, m.CreatedAt.Format(time.RFC3339Nano), m.Payload)
}
