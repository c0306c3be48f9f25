package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/outbox"
)

const (
	// lookBatch is how many messages are looked at together: one statement finds what is missing of all of them.
	lookBatch = 200
	// lookAgain is when a message that is not finished is looked at once more. It is also the lease of a rescue that dies.
	lookAgain = time.Minute
)

// Register notes what the configured consumers are owed from now on. It is called at start. A consumer that is added later owes
// nothing for the messages of before.
//
// It forgets nobody: an instance that is configured without a consumer, or of an older build, must not end it for the others. Who is
// gone for good is taken off by Forget; until then the invariants say that his messages do not reach him.
func (s *Service) Register(ctx context.Context) error {
	configured := make(map[string]bool)
	for _, c := range s.Consumers {
		configured[c.Name] = true
		for _, topic := range c.Topics {
			_, err := s.DB.ExecContext(ctx, `INSERT INTO t_subscription (consumer, topic, since_time) VALUES (?, ?, ?)`, c.Name, topic, s.Now())
			if err != nil && !mysqldb.IsDuplicate(err, "PRIMARY") {
				return fmt.Errorf("subscribe %s to %s: %w", c.Name, topic, err)
			}
		}
	}
	list, err := mysqldb.Collect(scanSubscription)(s.DB.QueryContext(ctx, `SELECT consumer, topic, since_time FROM t_subscription`))
	if err != nil {
		return fmt.Errorf("read subscriptions: %w", err)
	}
	s.since = make(map[subscription]time.Time, len(list))
	for _, l := range list {
		s.since[l.subscription] = l.at
		if !configured[l.consumer] {
			s.Log.Warn("a consumer is owed messages and is not configured here; if it is gone for good: api forget", "consumer", l.consumer, "topic", l.topic)
		}
	}
	return nil
}

// Forget ends what a consumer is owed, for all instances, and reports whether it was owed anything. What it has recorded stays.
func Forget(ctx context.Context, db *mysqldb.DB, consumer string) (bool, error) {
	res, err := db.ExecContext(ctx, `DELETE FROM t_subscription WHERE consumer = ?`, consumer)
	if err != nil {
		return false, fmt.Errorf("forget consumer %s: %w", consumer, err)
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// subscription is a consumer's wish for a topic.
type subscription struct{ consumer, topic string }

type subscribed struct {
	subscription
	at time.Time
}

func scanSubscription(row mysqldb.Scanner) (s subscribed, err error) {
	err = row.Scan(&s.consumer, &s.topic, &s.at)
	return s, err
}

// Rescue looks at the messages whose time has come and delivers each to those of its consumers that have no record of it. It
// needs no broker. A message that all its consumers are finished with is not looked at again.
func (s *Service) Rescue(ctx context.Context) error {
	round, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	for round.Err() == nil {
		ids, err := claimLooks(ctx, s.DB, s.Now())
		if err != nil || len(ids) == 0 {
			return err
		}
		owed, err := owedTo(ctx, s.DB, ids)
		if err != nil {
			return err
		}
		if err := settle(ctx, s.DB, ids, owed); err != nil {
			return err
		}
		if err := s.deliverMissing(ctx, round, owed); err != nil {
			return err
		}
	}
	return nil
}

// deliverMissing delivers what a consumer has no record of. What the round has no time for is looked at again.
func (s *Service) deliverMissing(ctx, round context.Context, owed []debt) error {
	return s.forEach(func(c Consumer) error {
		var missing []string
		for _, d := range owed {
			if d.consumer == c.Name && !d.known {
				missing = append(missing, d.msgID)
			}
		}
		messages, err := outbox.Load(ctx, s.DB, missing...)
		if err != nil || len(messages) == 0 {
			return err
		}
		s.Log.Warn("messages are delivered without the broker", "consumer", c.Name, "messages", len(messages), "first", messages[0].ID)
		begun, failing, err := s.each(round, len(messages), func(i int) (bool, error) { return s.deliver(ctx, c, messages[i]) })
		if failing {
			s.Log.Warn("a consumer fails; its messages rest", "consumer", c.Name, "for", restFor)
			for _, m := range messages[begun:] {
				err = errors.Join(err, s.putOff(ctx, c, m))
			}
		}
		return err
	})
}

// putOff records that a message waits for its first try. Whoever has a record of it by now keeps that.
func (s *Service) putOff(ctx context.Context, c Consumer, m outbox.Stored) error {
	next := s.Now().Add(restFor)
	r := Record{Consumer: c.Name, MsgID: m.ID, Topic: m.Topic, Status: Waiting, key: m.Key, nextTryAt: &next}
	err := s.DB.InTx(ctx, func(tx *sql.Tx) error {
		_, err := insert(ctx, tx, r, s.Now())
		return err
	})
	if errors.Is(err, errTaken) {
		return nil
	}
	return err
}

// claimLooks takes the messages that are due for this instance, by moving their time on.
func claimLooks(ctx context.Context, db *mysqldb.DB, now time.Time) (ids []int64, err error) {
	err = db.InTx(ctx, func(tx *sql.Tx) error {
		ids, err = mysqldb.Collect(scanID)(tx.QueryContext(ctx, `
			SELECT id FROM t_outbox WHERE next_look_at <= ? ORDER BY next_look_at, id LIMIT ?`, now, lookBatch))
		if err != nil || len(ids) == 0 {
			return err
		}
		marks, args := mysqldb.In(ids, now.Add(lookAgain))
		res, err := tx.ExecContext(ctx, `UPDATE t_outbox SET next_look_at = ? WHERE id IN (`+marks+`) AND next_look_at <= ?`,
			append(args, now)...)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err == nil && n != int64(len(ids)) { // another instance has some of them
			err = mysqldb.ErrStale
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim messages to look at: %w", err)
	}
	return ids, nil
}

func scanID(row mysqldb.Scanner) (id int64, err error) {
	err = row.Scan(&id)
	return id, err
}

// debt is a message that a consumer is owed.
type debt struct {
	id       int64 // of the message's row
	msgID    string
	consumer string
	known    bool // the consumer has a record of it
	finished bool
}

// owedTo returns who is owed which of the messages, and what they have made of it.
func owedTo(ctx context.Context, q mysqldb.Querier, ids []int64) ([]debt, error) {
	marks, args := mysqldb.In(ids)
	list, err := mysqldb.Collect(func(row mysqldb.Scanner) (d debt, err error) {
		var status sql.Null[Status]
		err = row.Scan(&d.id, &d.msgID, &d.consumer, &status)
		d.known, d.finished = status.Valid, status.Valid && status.V.Finished()
		return d, err
	})(q.QueryContext(ctx, `
		SELECT o.id, o.msg_id, s.consumer, d.status
		FROM t_outbox o
		JOIN t_subscription s ON s.topic = o.topic AND s.since_time <= o.create_time
		LEFT JOIN t_message_dedup d ON d.consumer = s.consumer AND d.msg_id = o.msg_id
		WHERE o.id IN (`+marks+`) ORDER BY o.id`, args...))
	if err != nil {
		return nil, fmt.Errorf("look who is owed messages: %w", err)
	}
	return list, nil
}

// settle ends the looks at messages that nobody is owed any more.
func settle(ctx context.Context, db *mysqldb.DB, ids []int64, owed []debt) error {
	open := make(map[int64]bool)
	for _, d := range owed {
		open[d.id] = open[d.id] || !d.finished
	}
	finished := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return open[id] })
	if len(finished) == 0 {
		return nil
	}
	marks, args := mysqldb.In(finished)
	err := db.InTx(ctx, func(tx *sql.Tx) error { // run again on a deadlock with the relay, which updates the same rows
		_, err := tx.ExecContext(ctx, `UPDATE t_outbox SET next_look_at = NULL WHERE id IN (`+marks+`)`, args...)
		return err
	})
	if err != nil {
		return fmt.Errorf("end the looks at messages: %w", err)
	}
	return nil
}
