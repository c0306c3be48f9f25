// Package apperr gives errors a kind, so that a caller can decide without reading text, and so that one place (web)
// decides what a client sees. It knows nothing of HTTP.
package apperr

import (
	"errors"
	"fmt"
	"time"
)

// Kind says what an error means for the caller.
type Kind int

// The kinds. Internal is the zero value on purpose: an error nobody classified is a fault of ours.
const (
	Internal         Kind = iota // a fault of ours; the caller cannot repair it
	Invalid                      // the request is malformed
	Unauthenticated              // we do not know who asks
	Forbidden                    // we know, and the answer is no
	NotFound                     // no such thing for this caller
	Conflict                     // the business looked, and refused
	Declined                     // a payment channel refused the money
	InProgress                   // the same action is being worked on; ask again
	KeyReused                    // an Idempotency-Key came back with another request
	TooLarge                     // the body is over the limit
	UnsupportedMedia             // the body is of a type we do not read
	MethodNotAllowed             // the route exists, the method does not
	RateLimited                  // too many requests from this caller
	Unavailable                  // something we need is down, or the outcome is not known; nothing may be concluded
)

// The layers that can answer a request in place of the business (contract: problem member "layer").
const (
	LayerToken          = "token"
	LayerIdempotencyKey = "idempotency_key"
	LayerLock           = "lock"
	LayerState          = "state"
	LayerUniqueIndex    = "unique_index"
	LayerDedup          = "dedup"
)

// Error is an error with a kind and a stable code.
type Error struct {
	Kind       Kind
	Code       string         // stable; each has a section in docs/errors.md
	Detail     string         // for the person who reads the answer; never holds internals
	Layer      string         // the guard that answered, or empty
	RetryAfter time.Duration  // when asking again makes sense; 0: not said
	Extra      map[string]any // further members of the problem, such as a fresh token
	Err        error          // the cause, for the log only
}

// New makes an error of a kind with a stable code and a detail for people.
func New(kind Kind, code, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, Detail: fmt.Sprintf(format, args...)}
}

// At names the guard that answered.
func (e *Error) At(layer string) *Error { e.Layer = layer; return e }

// After says when asking again makes sense.
func (e *Error) After(d time.Duration) *Error { e.RetryAfter = d; return e }

// Wrap records the cause, which is logged and never shown.
func (e *Error) Wrap(err error) *Error { e.Err = err; return e }

// With adds a member to the problem.
func (e *Error) With(name string, value any) *Error {
	if e.Extra == nil {
		e.Extra = make(map[string]any, 1)
	}
	e.Extra[name] = value
	return e
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Detail, e.Err)
	}
	return e.Code + ": " + e.Detail
}

func (e *Error) Unwrap() error { return e.Err }

// Retryable reports whether sending the very same request again may succeed without anything else changing.
func (e *Error) Retryable() bool {
	switch e.Kind {
	case InProgress, RateLimited, Unavailable, Internal:
		return true
	default:
		return false
	}
}

// As finds the *Error in err's chain.
func As(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}

// Is reports whether err carries the given code.
func Is(err error, code string) bool {
	e, ok := As(err)
	return ok && e.Code == code
}
