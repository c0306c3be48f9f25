package web

import (
	"context"
	"log/slog"

	"github.com/google/uuid"
)

type contextKey int

const (
	requestIDKey contextKey = iota
	loggerKey
)

// RequestID returns the request's id, or "" outside a request.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey).(string)
	return id
}

// Log returns the logger that carries the request's id.
func Log(ctx context.Context) *slog.Logger {
	if l, ok := ctx.Value(loggerKey).(*slog.Logger); ok {
		return l
	}
	return slog.Default()
}

// WithRequestID returns a context that carries a request's id and a logger that names it.
func WithRequestID(ctx context.Context, id string, log *slog.Logger) context.Context {
	ctx = context.WithValue(ctx, requestIDKey, id)
	return context.WithValue(ctx, loggerKey, log.With("request_id", id))
}

// maxRequestID is the column that keeps it (t_outbox.request_id).
const maxRequestID = 128

// requestID takes over a well-formed id, so that a trace goes on, and makes one otherwise: what is written into logs and
// rows is never free text of a stranger.
func requestID(header string) string {
	if header == "" || len(header) > maxRequestID {
		return uuid.NewString()
	}
	for i := range len(header) {
		c := header[i]
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == ':'
		if !ok {
			return uuid.NewString()
		}
	}
	return header
}
