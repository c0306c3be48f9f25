// Package auth turns a bearer token into the caller. It decides who asks and with which role; what is whose is the
// business's own question.
package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/web"
)

// RoleOps is the operator's role; a user has none.
const RoleOps = "ops"

// Caller is who sent the request.
type Caller struct {
	UserID int64
	Ops    bool
}

// Actor names the caller in histories, e.g. "user:1001".
func (c Caller) Actor() string {
	if c.Ops {
		return fmt.Sprintf("ops:%d", c.UserID)
	}
	return fmt.Sprintf("user:%d", c.UserID)
}

// MaySee reports whether what belongs to owner is the caller's business.
func (c Caller) MaySee(owner int64) bool { return c.Ops || c.UserID == owner }

type callerKey struct{}

// From returns the caller that Require put into the context.
func From(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// With returns a context with a caller; Require does this for requests, tests for themselves.
func With(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

type claims struct {
	Role string `json:"role,omitempty"`
	jwt.RegisteredClaims
}

// Sign makes a bearer token (HS256), for `api token` in dev and for tests.
func Sign(secret string, c Caller, expires time.Time) (string, error) {
	cl := claims{RegisteredClaims: jwt.RegisteredClaims{Subject: strconv.FormatInt(c.UserID, 10), ExpiresAt: jwt.NewNumericDate(expires)}}
	if c.Ops {
		cl.Role = RoleOps
	}
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, cl).SignedString([]byte(secret))
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return signed, nil
}

// Require answers 401 unless the request carries one good bearer token.
func Require(secret string, now func() time.Time) func(http.Handler) http.Handler {
	// HS256 only: a token must not choose its own algorithm (RFC 8725 §3.1).
	parser := jwt.NewParser(jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}), jwt.WithTimeFunc(now))
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			caller, err := parse(parser, secret, r.Header.Values("Authorization"))
			if err != nil {
				web.Handle(func(*http.Request) (web.Answer, error) { return web.Answer{}, err })(w, r)
				return
			}
			next.ServeHTTP(w, r.WithContext(With(r.Context(), caller)))
		})
	}
}

// RequireOps answers 403 unless the caller is an operator. It stands behind Require.
func RequireOps(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !From(r.Context()).Ops {
			web.Handle(func(*http.Request) (web.Answer, error) {
				return web.Answer{}, apperr.New(apperr.Forbidden, "ops_only", "This needs the role %q.", RoleOps)
			})(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func parse(parser *jwt.Parser, secret string, headers []string) (Caller, error) {
	if len(headers) == 0 {
		return Caller{}, apperr.New(apperr.Unauthenticated, "bearer_missing", "Send a bearer token in the Authorization header.")
	}
	refused := apperr.New(apperr.Unauthenticated, "bearer_invalid", "The bearer token is not valid.")
	scheme, raw, found := strings.Cut(headers[0], " ")
	if len(headers) > 1 || !found || !strings.EqualFold(scheme, "Bearer") {
		return Caller{}, refused
	}
	var cl claims
	_, err := parser.ParseWithClaims(raw, &cl, func(*jwt.Token) (any, error) { return []byte(secret), nil })
	if errors.Is(err, jwt.ErrTokenExpired) {
		return Caller{}, apperr.New(apperr.Unauthenticated, "bearer_expired", "The bearer token has expired.")
	}
	if err != nil {
		return Caller{}, refused.Wrap(err)
	}
	id, err := strconv.ParseInt(cl.Subject, 10, 64)
	if err != nil || id < 1 || strconv.FormatInt(id, 10) != cl.Subject {
		return Caller{}, refused.Wrap(fmt.Errorf("sub %q is not a positive decimal integer", cl.Subject))
	}
	if cl.Role != "" && cl.Role != RoleOps {
		return Caller{}, refused.Wrap(fmt.Errorf("role %q is not known", cl.Role))
	}
	return Caller{UserID: id, Ops: cl.Role == RoleOps}, nil
}
