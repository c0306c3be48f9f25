package callback

import (
	"database/sql"
	"net/http"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/web"
)

// HTTP holds the handlers of notices.
type HTTP struct {
	Service *Service
	Keys    *idemkey.Store
}

// Receive answers POST /v1/callbacks/{channel}: the raw body, then the signature, then one parse. The acknowledgement is in
// the channel's own bytes; everything else is a problem, which no channel takes for one.
func (h *HTTP) Receive(r *http.Request) (web.Answer, error) {
	body, err := web.ReadBody(r)
	if err != nil {
		return web.Answer{}, err
	}
	ack, err := h.Service.Receive(r.Context(), web.PathParam(r, "channel"), r.Header, body)
	if err != nil {
		return web.Answer{}, err
	}
	return web.Answer{Status: ack.Status, ContentType: ack.ContentType, Body: []byte(ack.Body)}, nil
}

// Replay answers POST /v1/ops/notices/{id}/replay.
func (h *HTTP) Replay(r *http.Request) (web.Answer, error) {
	id, err := web.PathID(r)
	if err != nil {
		return web.Answer{}, err
	}
	body, err := web.NoBody(r)
	if err != nil {
		return web.Answer{}, err
	}
	key, err := idemkey.Optional(r, "notice.replay", body)
	if err != nil {
		return web.Answer{}, err
	}
	ctx := r.Context()
	return h.Keys.Once(ctx, key, func(tx *sql.Tx) (web.Answer, error) {
		n, err := h.Service.Replay(ctx, tx, id, auth.From(ctx))
		if err != nil {
			return web.Answer{}, err
		}
		return web.JSON(http.StatusOK, n)
	})
}
