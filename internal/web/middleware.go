package web

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
)

// retryUnavailable is what a 503 asks for: one second is longer than a failover's worst single blip needs and shorter
// than a person's patience.
const retryUnavailable = time.Second

// Observe gives each request its id and logger, turns a panic into a 500 problem, writes one access line and one metric.
// net/http's own abort sentinel is passed on.
func Observe(log *slog.Logger, m *metrics.Metrics, now func() time.Time) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			start := now()
			id := requestID(r.Header.Get("X-Request-Id"))
			r = r.WithContext(WithRequestID(r.Context(), id, log))
			w.Header().Set("X-Request-Id", id)
			rec := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
			defer func() {
				if v := recover(); v != nil {
					if v == http.ErrAbortHandler {
						panic(v)
					}
					recovered(rec, r, v)
				}
				// A handler that wrote nothing has answered 200: net/http does that by itself.
				served(r, cmp.Or(rec.Status(), http.StatusOK), now().Sub(start), m)
			}()
			next.ServeHTTP(rec, r)
		})
	}
}

// recovered answers for a handler that panicked. If it had begun to answer there is nothing to mend: the client sees a
// broken body.
func recovered(rec middleware.WrapResponseWriter, r *http.Request, v any) {
	Log(r.Context()).Error("panic", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if rec.Status() == 0 {
		Write(rec, Problem(r.Context(), fmt.Errorf("panic: %v", v)))
	}
}

func served(r *http.Request, status int, took time.Duration, m *metrics.Metrics) {
	route := chi.RouteContext(r.Context()).RoutePattern()
	if route == "" {
		route = "none" // no such route: the path is a stranger's text and stays out of the labels
	}
	method := r.Method
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead, http.MethodPatch, http.MethodOptions:
	default:
		method = "other"
	}
	m.HTTPServed(method, route, strconv.Itoa(status), took)
	Log(r.Context()).Info("served", "method", method, "route", route, "status", status, "ms", took.Milliseconds())
}

// Deadline ends a request's context after d. The handler notices and answers by itself: nothing else writes the response,
// so there is never a second one.
func Deadline(d time.Duration) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), d)
			defer cancel()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// SecurityHeaders are right for an API whose answers are nobody else's business.
func SecurityHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Frame-Options", "DENY")
		next.ServeHTTP(w, r)
	})
}

// NoRoute answers for a path nobody handles.
func NoRoute(*http.Request) (Answer, error) {
	return Answer{}, apperr.New(apperr.NotFound, "route_not_found", "There is no such path.")
}

// NoMethod answers for a path that has no such method.
func NoMethod(r *http.Request) (Answer, error) {
	return Answer{}, apperr.New(apperr.MethodNotAllowed, "method_not_allowed", "%s is not possible here.", r.Method)
}
