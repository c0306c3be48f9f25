package idemkey

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

// DerivedHeader tells a caller without a key which one was made for the request.
const DerivedHeader = "Idempotency-Key-Derived"

// submitToken is the header of package token, which stands beside this one.
const submitToken = "X-Submit-Token"

type derivedKey struct{}

// Derive makes keys for old callers that send none (S0 §9.4). A POST without an Idempotency-Key gets one made of method, path, query,
// caller, submit token and canonical body; the same request within window of the first gets the same one, on every instance. The answer names it
// in Idempotency-Key-Derived, and is kept for the window only. A key that was sent always wins.
//
// It is a last resort: two honest equal requests within the window are taken for one, and a retry after it is a new request. So it is
// for routes that require a key, of callers that cannot be changed. It stands behind auth.Require.
func (s *Store) Derive(window time.Duration) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if s.Disabled || r.Method != http.MethodPost || len(r.Header.Values(Header)) > 0 {
				next.ServeHTTP(w, r)
				return
			}
			print, r, err := peek(r)
			if err != nil { // the handler says better what is wrong
				next.ServeHTTP(w, r)
				return
			}
			key, err := s.derive(r.Context(), auth.From(r.Context()).UserID, print, window)
			if err != nil {
				web.Handle(func(*http.Request) (web.Answer, error) { return web.Answer{}, err })(w, r)
				return
			}
			r.Header.Set(Header, key)
			w.Header().Set(DerivedHeader, key)
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), derivedKey{}, window)))
		})
	}
}

// peek makes the fingerprint of a request, and returns a copy of it whose body is still to be read, all of it.
func peek(r *http.Request) (string, *http.Request, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, web.MaxBody+1))
	copied := r.Clone(r.Context())
	copied.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	if err != nil || len(body) > web.MaxBody {
		return "", copied, errors.Join(err, errUnread)
	}
	print, err := fingerprint(r, body)
	if token := r.Header.Get(submitToken); token != "" { // another form is another purchase, whatever is written in it
		sum := sha256.Sum256([]byte(print + "\n" + token))
		print = "v1t:" + hex.EncodeToString(sum[:])
	}
	return print, copied, err
}

var errUnread = errors.New("idemkey: the body is too large or broke off")

// derive returns the key of the window that a request falls into. It ends with the time when the window began: business keys are
// made of it and hold for ever, and a day later the same request must not find the order of today.
//
// The first request writes that time into a row, which its equals read. Windows cut by the clock alone would make two keys of two
// requests just before and after an edge. The row's name begins with ~, which no key that is sent or looked up can hold.
func (s *Store) derive(ctx context.Context, caller int64, print string, window time.Duration) (string, error) {
	name := fmt.Sprintf("derived:%d:%s", caller, print)
	var began time.Time
	err := s.DB.InTx(ctx, func(tx *sql.Tx) error {
		now := s.Now()
		rec, err := s.read(ctx, tx, caller, "~"+name)
		switch {
		case err != nil:
			return err
		case rec != nil && now.Before(rec.ExpiresAt):
			began = rec.CreatedAt
			return nil
		case rec == nil:
			began = now
			return s.openWindow(ctx, tx, caller, "~"+name, print, now, now.Add(window))
		default:
			began = now
			return s.renewWindow(ctx, tx, caller, "~"+name, rec.ExpiresAt, now, now.Add(window))
		}
	})
	if err != nil {
		return "", fmt.Errorf("derive idempotency key: %w", err)
	}
	return fmt.Sprintf("%s:%d", name, began.UnixMicro()), nil
}

// openWindow writes the row of a request's first window. The unique index decides between twins.
func (s *Store) openWindow(ctx context.Context, tx *sql.Tx, caller int64, name, print string, began, ends time.Time) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO t_idempotency_key (caller_id, idem_key, operation, fingerprint, state, owner, lease_until, create_time, expires_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		caller, name, "derive", print, stateDone, rand.Text(), ends, began, ends)
	if mysqldb.IsDuplicate(err, "uk_caller_key") {
		return fmt.Errorf("a twin opened the window: %w", mysqldb.ErrStale)
	}
	return err
}

// renewWindow opens the next window of a request whose last one is over, if that still is the one that was read.
func (s *Store) renewWindow(ctx context.Context, tx *sql.Tx, caller int64, name string, ended, began, ends time.Time) error {
	renewed, err := mysqldb.Matched(tx.ExecContext(ctx, `
		UPDATE t_idempotency_key SET lease_until = ?, create_time = ?, expires_at = ? WHERE caller_id = ? AND idem_key = ? AND expires_at = ?`,
		ends, began, ends, caller, name, ended))
	if err == nil && !renewed {
		err = fmt.Errorf("a twin opened the window: %w", mysqldb.ErrStale)
	}
	return err
}

// derivedFor returns the window of a request whose key was derived, or 0.
func derivedFor(ctx context.Context) time.Duration {
	window, _ := ctx.Value(derivedKey{}).(time.Duration)
	return window
}
