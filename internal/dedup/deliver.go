package dedup

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/web"
)

// Deliver gives a message to a consumer for the first time. It returns nil once it is durable what became of it: it took effect,
// now or before, or it waits for Retry or a person. An error means that nothing is known; the message must come again.
func (s *Service) Deliver(ctx context.Context, c Consumer, m outbox.Stored) error {
	_, err := s.deliver(ctx, c, m)
	return err
}

// deliver also reports whether the message went through: it took effect, or is somebody else's.
func (s *Service) deliver(ctx context.Context, c Consumer, m outbox.Stored) (through bool, err error) {
	ctx = web.WithRequestID(ctx, m.RequestID, s.Log)
	r := Record{Consumer: c.Name, MsgID: m.ID, Topic: m.Topic, key: m.Key}
	if s.Filter.maybe(r) { // spares an insert that would be refused; the row decides
		if known, err := find(ctx, s.DB, r.Consumer, r.MsgID); err != nil || known != nil {
			s.repeat(ctx, known)
			return true, err
		}
	}
	if c.Call != nil {
		// Committed before the call, so that the row tells of it if this run dies.
		held := s.hold(r)
		err := s.DB.InTx(ctx, func(tx *sql.Tx) (err error) {
			held.ID, err = insert(ctx, tx, held, s.Now())
			return err
		})
		if errors.Is(err, errTaken) {
			return true, s.taken(ctx, r)
		}
		if err != nil {
			return false, err
		}
		r = held
	}
	return s.work(ctx, c, m, r)
}

// hold returns the record as a new run holds it.
func (s *Service) hold(r Record) Record {
	until := s.Now().Add(s.Lease)
	r.Status, r.owner, r.nextTryAt = Processing, rand.Text(), &until
	return r
}

// work tries a message once and records what became of it, and reports whether it went through. r is the row that this run holds, or, without an owner, the row to come.
// A try that has begun goes on when the process stops.
func (s *Service) work(ctx context.Context, c Consumer, m outbox.Stored, r Record) (through bool, err error) {
	try := s.handle
	if c.Call != nil {
		try = s.call
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workLimit)
	defer cancel()
	err = try(ctx, c, m, r)
	switch {
	case err == nil:
		s.count(c.Name, metrics.Passed)
		s.Filter.add(r)
		return true, nil
	case errors.Is(err, errTaken):
		return true, s.taken(ctx, r)
	}
	noteErr := s.failed(ctx, r, err)
	switch {
	case noteErr == nil:
		s.Filter.add(r)
		return false, nil
	case errors.Is(noteErr, errTaken): // or the try's COMMIT took place and its reply was lost
		return true, s.taken(ctx, r)
	default:
		return false, errors.Join(err, noteErr)
	}
}

// handle marks a message done and makes it take effect, in one transaction: both or neither.
func (s *Service) handle(ctx context.Context, c Consumer, m outbox.Stored, r Record) error {
	return s.DB.InTx(ctx, func(tx *sql.Tx) error {
		id, err := s.markDone(ctx, tx, r)
		if err != nil {
			return err
		}
		var outcome string
		err = s.safely(func() (err error) {
			outcome, err = c.Handle(ctx, tx, m)
			return err
		})
		if err != nil {
			return err
		}
		return setOutcome(ctx, tx, id, outcome)
	})
}

// call makes the call, outside any transaction, and then marks the message done if this run still holds it.
func (s *Service) call(ctx context.Context, c Consumer, m outbox.Stored, r Record) error {
	if err := s.safely(func() error { return c.Call(ctx, m) }); err != nil {
		return err
	}
	ctx, cancel := afterwards(ctx)
	defer cancel()
	return s.DB.InTx(ctx, func(tx *sql.Tx) error {
		id, err := s.markDone(ctx, tx, r)
		if err != nil {
			return err
		}
		return setOutcome(ctx, tx, id, "called")
	})
}

// markDone also resolves the exception of a message that had been given up.
func (s *Service) markDone(ctx context.Context, tx *sql.Tx, r Record) (id int64, err error) {
	r.Status, r.nextTryAt = Done, nil
	id, err = put(ctx, tx, r, s.Now())
	if err != nil || r.owner == "" {
		return id, err
	}
	return id, s.Exceptions.ResolveSubject(ctx, tx, exception.DeadLetter, subject(r), auth.Caller{}, "replayed, and then it succeeded; the audit log says by whom")
}

// afterwards is a context for the note of what happened, which must not fail because the time is up or the process stops.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
}

// failed records a failed try: the message waits for its next one, or is given up.
func (s *Service) failed(ctx context.Context, r Record, cause error) error {
	ctx, cancel := afterwards(ctx)
	defer cancel()
	r.Tries++
	r.LastError = mysqldb.Cut(cause.Error())
	if r.Tries >= MaxTries {
		return s.bury(ctx, r)
	}
	next := s.Now().Add(firstPause << (r.Tries - 1))
	r.Status, r.nextTryAt = Waiting, &next
	err := s.DB.InTx(ctx, func(tx *sql.Tx) error {
		_, err := put(ctx, tx, r, s.Now())
		return err
	})
	if err != nil {
		return err
	}
	web.Log(ctx).Warn("a message failed and waits for its next try", "consumer", r.Consumer, "msg_id", r.MsgID, "topic", r.Topic,
		"tries", r.Tries, "next_try_at", next, "error", r.LastError)
	return nil
}

// bury makes a dead letter of a message that this run holds. The alarm is the exception's, and a line of its own because an
// exception that is open already raises none.
func (s *Service) bury(ctx context.Context, r Record) error {
	r.Status, r.nextTryAt = Dead, nil
	err := s.DB.InTx(ctx, func(tx *sql.Tx) error {
		if _, err := put(ctx, tx, r, s.Now()); err != nil {
			return err
		}
		return s.Exceptions.Open(ctx, tx, exception.Exception{
			Kind: exception.DeadLetter, Subject: subject(r), OrderNo: orderNo(r.key), Again: true,
			Detail: fmt.Sprintf("dead letter %d: consumer %s gave up message %s (%s) after %d tries: %s", r.ID, r.Consumer, r.MsgID, r.Topic, r.Tries, r.LastError),
		})
	})
	if err != nil {
		return err
	}
	web.Log(ctx).Error("a message is a dead letter", "consumer", r.Consumer, "msg_id", r.MsgID, "topic", r.Topic, "tries", r.Tries, "error", r.LastError)
	return nil
}

func subject(r Record) string { return r.Consumer + ":" + r.MsgID }

// taken looks what became of a message that another run has or had, after the rollback: inside the refused transaction an older
// snapshot could hide it.
func (s *Service) taken(ctx context.Context, r Record) error {
	known, err := find(ctx, s.DB, r.Consumer, r.MsgID)
	if err != nil {
		return err
	}
	if known == nil {
		return fmt.Errorf("message %s was marked, and now is not", r.MsgID)
	}
	if r.owner != "" && r.owner != known.owner {
		s.count(r.Consumer, metrics.Lost)
		web.Log(ctx).Warn("a run was presumed dead and changes nothing", "consumer", r.Consumer, "msg_id", r.MsgID)
		return nil
	}
	s.repeat(ctx, known)
	return nil
}

// repeat counts a message that has a row: what is finished is a repeat, the rest is left to Retry or to a person.
func (s *Service) repeat(ctx context.Context, known *Record) {
	if known == nil {
		return
	}
	outcome := metrics.Replayed
	if !known.Status.Finished() {
		outcome = metrics.Blocked
	}
	s.count(known.Consumer, outcome)
	s.Filter.add(*known)
	web.Log(ctx).Info("a message came again", "consumer", known.Consumer, "msg_id", known.MsgID, "status", statusNames[known.Status])
}
