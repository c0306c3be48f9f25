package dedup

import (
	"database/sql"
	"net/http"
	"unicode/utf8"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/web"
)

// HTTP holds the operator's handlers.
type HTTP struct {
	Service *Service
	Keys    *idemkey.Store
	Wake    func() // starts the next round of Retry now
}

// List answers GET /v1/ops/dead-letters.
func (h *HTTP) List(r *http.Request) (web.Answer, error) {
	page, err := web.ParsePage(r)
	if err != nil {
		return web.Answer{}, err
	}
	list, err := h.Service.List(r.Context(), page)
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, web.Paged(page, list, func(r Record) int64 { return r.ID }))
}

// Replay answers POST /v1/ops/dead-letters/{id}/replay.
func (h *HTTP) Replay(r *http.Request) (web.Answer, error) {
	body, err := web.NoBody(r)
	if err != nil {
		return web.Answer{}, err
	}
	answer, err := h.decide(r, "dead_letter.replay", body, func(tx *sql.Tx, id int64) (Record, error) {
		return h.Service.Replay(r.Context(), tx, id, auth.From(r.Context()))
	})
	if err == nil {
		h.Wake() // after the commit
	}
	return answer, err
}

// maxReason is what the exception's and the audit record's columns hold, less what is put before it, in characters.
const maxReason = 900

// Discard answers POST /v1/ops/dead-letters/{id}/discard. The body, {"reason": "..."}, is optional.
func (h *HTTP) Discard(r *http.Request) (web.Answer, error) {
	var req struct {
		Reason string `json:"reason"`
	}
	body, err := web.DecodeOptional(r, &req)
	if err != nil {
		return web.Answer{}, err
	}
	if utf8.RuneCountInString(req.Reason) > maxReason {
		return web.Answer{}, apperr.New(apperr.Invalid, "field_invalid", "reason has at most %d characters.", maxReason)
	}
	return h.decide(r, "dead_letter.discard", body, func(tx *sql.Tx, id int64) (Record, error) {
		return h.Service.Discard(r.Context(), tx, id, auth.From(r.Context()), req.Reason)
	})
}

// decide reads what both decisions have in common and makes one, once for each Idempotency-Key.
func (h *HTTP) decide(r *http.Request, operation string, body []byte, decision func(tx *sql.Tx, id int64) (Record, error)) (web.Answer, error) {
	id, err := web.PathID(r)
	if err != nil {
		return web.Answer{}, err
	}
	key, err := idemkey.Optional(r, operation, body)
	if err != nil {
		return web.Answer{}, err
	}
	return h.Keys.Once(r.Context(), key, func(tx *sql.Tx) (web.Answer, error) {
		rec, err := decision(tx, id)
		if err != nil {
			return web.Answer{}, err
		}
		return web.JSON(http.StatusOK, rec)
	})
}
