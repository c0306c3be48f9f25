// Package web is the edge: the only place that knows both our errors and HTTP. Handlers return an Answer or an error;
// everything a client sees of an error is made here.
package web

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/mysqldb"
)

// Answer is a finished response: bytes, so that what was stored can be sent again unchanged.
type Answer struct {
	Status      int
	ContentType string
	Location    string
	RetryAfter  int // seconds, 0: not said
	Replay      Replay
	Body        []byte
}

// Replay says whether an answer under an Idempotency-Key is the first one or the stored one (header
// Idempotent-Replayed).
type Replay int

// NoKey: the request had no Idempotency-Key, so the header is absent.
const (
	NoKey Replay = iota
	FirstRun
	Replayed
)

// Handler answers a request, or returns an error whose kind decides the problem that is sent.
type Handler func(r *http.Request) (Answer, error)

// Handle adapts a Handler to net/http.
func Handle(h Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := h(r)
		if err != nil {
			answer = Problem(r.Context(), err)
			logProblem(r, answer.Status, err)
		}
		Write(w, answer)
	}
}

// Write sends an answer.
func Write(w http.ResponseWriter, a Answer) {
	h := w.Header()
	h.Set("Content-Type", a.ContentType)
	if a.Location != "" {
		h.Set("Location", a.Location)
	}
	if a.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(a.RetryAfter))
	}
	if a.Replay != NoKey {
		h.Set("Idempotent-Replayed", strconv.FormatBool(a.Replay == Replayed))
	}
	if a.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer") // RFC 9110 §11.6.1 demands it with every 401
	}
	w.WriteHeader(a.Status)
	w.Write(a.Body) // the client may be gone; there is nobody left to tell
}

// JSON makes an answer of a value.
func JSON(status int, v any) (Answer, error) {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return Answer{}, fmt.Errorf("encode answer: %w", err)
	}
	return Answer{Status: status, ContentType: "application/json", Body: append(body, '\n')}, nil
}

// OrNull is the JSON form of a text that may be absent: "" is null.
func OrNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// problem is RFC 9457 with our extension members code, layer, retryable and request_id.
type problem struct {
	Type      string         `json:"type"`
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Detail    string         `json:"detail,omitempty"`
	Code      string         `json:"code"`
	Layer     string         `json:"layer,omitempty"`
	Retryable bool           `json:"retryable"`
	RequestID string         `json:"request_id"`
	Extra     map[string]any `json:",embed"`
}

// Problem renders an error as application/problem+json. A 5xx never shows internals.
func Problem(ctx context.Context, err error) Answer {
	e := classify(err)
	status := Status(e.Kind)
	p := problem{
		Type: "/docs/errors#" + e.Code, Title: http.StatusText(status), Status: status, Detail: e.Detail, Code: e.Code,
		Layer: e.Layer, Retryable: e.Retryable(), RequestID: RequestID(ctx), Extra: e.Extra,
	}
	body, marshalErr := json.Marshal(p, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if marshalErr != nil { // an extra member that is no JSON: a fault of ours, whatever the error was
		status = http.StatusInternalServerError
		body = []byte(`{"type":"about:blank","title":"Internal Server Error","status":500,"code":"internal","retryable":true}`)
	}
	return Answer{
		Status: status, ContentType: "application/problem+json", Body: append(body, '\n'),
		RetryAfter: int(math.Ceil(e.RetryAfter.Seconds())),
	}
}

// Status maps a kind to HTTP. It is the only such map.
func Status(k apperr.Kind) int {
	switch k {
	case apperr.Invalid:
		return http.StatusBadRequest
	case apperr.Unauthenticated:
		return http.StatusUnauthorized
	case apperr.Forbidden:
		return http.StatusForbidden
	case apperr.NotFound:
		return http.StatusNotFound
	case apperr.MethodNotAllowed:
		return http.StatusMethodNotAllowed
	case apperr.Conflict, apperr.InProgress:
		return http.StatusConflict
	case apperr.Declined:
		return http.StatusPaymentRequired
	case apperr.KeyReused:
		return http.StatusUnprocessableEntity
	case apperr.TooLarge:
		return http.StatusRequestEntityTooLarge
	case apperr.UnsupportedMedia:
		return http.StatusUnsupportedMediaType
	case apperr.RateLimited:
		return http.StatusTooManyRequests
	case apperr.Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// classify gives every error a kind: our own have one; the database's "could not work" and "nobody knows" are retryable;
// all else is a fault of ours.
func classify(err error) *apperr.Error {
	if e, ok := apperr.As(err); ok {
		return e
	}
	if mysqldb.Unavailable(err) {
		return apperr.New(apperr.Unavailable, "unavailable", "The service cannot tell the outcome right now. Send the same request again; it will not be done twice.").
			After(retryUnavailable)
	}
	return apperr.New(apperr.Internal, "internal", "Something went wrong on our side. Send the same request again; it will not be done twice.")
}

// logProblem is the one place that logs an error: at the edge, once.
func logProblem(r *http.Request, status int, err error) {
	level := slog.LevelInfo
	if status >= 500 {
		level = slog.LevelError
	}
	Log(r.Context()).Log(r.Context(), level, "request refused", "status", status, "error", err)
}
