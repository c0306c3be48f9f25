package idemkey

import (
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/web"
)

// recordView shows a key's record to its owner.
type recordView struct {
	Key       string         `json:"key"`
	Operation string         `json:"operation"`
	State     string         `json:"state"` // in_progress or done
	Status    *int           `json:"status"`
	Location  *string        `json:"location"`
	Result    jsontext.Value `json:"result"`
	CreatedAt time.Time      `json:"created_at"`
	ExpiresAt time.Time      `json:"expires_at"`
}

// LookupHTTP answers GET /v1/idempotency-keys/{key}: the state, the result, and when it expires.
func (s *Store) LookupHTTP(r *http.Request) (web.Answer, error) {
	value, err := ParseValue([]string{web.PathParam(r, "key")})
	if err != nil {
		return web.Answer{}, err
	}
	rec, err := s.Lookup(r.Context(), auth.From(r.Context()).UserID, value)
	if err != nil {
		return web.Answer{}, err
	}
	if rec == nil {
		return web.Answer{}, apperr.New(apperr.NotFound, "idempotency_key_not_found", "Nothing is stored under this key.").
			At(apperr.LayerIdempotencyKey)
	}
	v := recordView{Key: value, Operation: rec.Operation, State: "in_progress", Result: jsontext.Value("null"), CreatedAt: rec.CreatedAt, ExpiresAt: rec.ExpiresAt}
	if rec.Done {
		v.State, v.Status, v.Result = "done", &rec.Answer.Status, jsontext.Value(rec.Answer.Body)
		if rec.Answer.Location != "" {
			v.Location = &rec.Answer.Location
		}
	}
	return web.JSON(http.StatusOK, v)
}
