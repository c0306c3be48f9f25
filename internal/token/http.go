package token

import (
	"net/http"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/web"
)

// Header carries a submit token.
const Header = "X-Submit-Token"

// FromHeader reads the request's submit token; "" when none was sent.
func FromHeader(r *http.Request) (string, error) {
	lines := r.Header.Values(Header)
	switch len(lines) {
	case 0:
		return "", nil
	case 1:
		return lines[0], ValidValue(lines[0])
	default:
		return "", apperr.New(apperr.Invalid, "submit_token_invalid", "%s was sent %d times; send it once.", Header, len(lines)).
			At(apperr.LayerToken)
	}
}

// IssueHTTP answers POST /v1/tokens.
func (s *Store) IssueHTTP(r *http.Request) (web.Answer, error) {
	var req struct {
		Scene string `json:"scene"`
	}
	if _, err := web.DecodeJSON(r, &req); err != nil {
		return web.Answer{}, err
	}
	t, err := s.Issue(r.Context(), req.Scene, auth.From(r.Context()).UserID)
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusCreated, struct {
		Token     string    `json:"token"`
		Scene     string    `json:"scene"`
		ExpiresAt time.Time `json:"expires_at"`
	}{t.Value, t.Scene, t.ExpiresAt})
}
