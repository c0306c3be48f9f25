package exception

import (
	"context"
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
	Store       *Store
	Keys        *idemkey.Store
	ReturnMoney func(ctx context.Context, tx *sql.Tx, e Exception) error // the payment service's
}

// List answers GET /v1/ops/exceptions[?status=open|resolved].
func (h *HTTP) List(r *http.Request) (web.Answer, error) {
	page, err := web.ParsePage(r)
	if err != nil {
		return web.Answer{}, err
	}
	status := r.URL.Query().Get("status")
	if status != "" && status != "open" && status != "resolved" {
		return web.Answer{}, apperr.New(apperr.Invalid, "status_invalid", "status is open or resolved.")
	}
	list, err := h.Store.List(r.Context(), status, page)
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, web.Paged(page, list, func(e Exception) int64 { return e.ID }))
}

const maxResolution = 1024 // characters; the column's width

// Resolve answers POST /v1/ops/exceptions/{id}/resolve: a person says what was done, in a body that may be missing. With return_money the money that the exception
// is about goes back to where it came from, in the same transaction.
func (h *HTTP) Resolve(r *http.Request) (web.Answer, error) {
	id, err := web.PathID(r)
	if err != nil {
		return web.Answer{}, err
	}
	var req struct {
		Resolution  string `json:"resolution"`
		ReturnMoney bool   `json:"return_money"`
	}
	body, err := web.DecodeOptional(r, &req)
	if err != nil {
		return web.Answer{}, err
	}
	if utf8.RuneCountInString(req.Resolution) > maxResolution {
		return web.Answer{}, apperr.New(apperr.Invalid, "field_invalid", "resolution says what was done, in at most %d characters.", maxResolution)
	}
	key, err := idemkey.Optional(r, "exception.resolve", body)
	if err != nil {
		return web.Answer{}, err
	}
	ctx := r.Context()
	return h.Keys.Once(ctx, key, func(tx *sql.Tx) (web.Answer, error) {
		e, err := h.Store.Resolve(ctx, tx, id, auth.From(ctx), req.Resolution)
		if err != nil {
			return web.Answer{}, err
		}
		if req.ReturnMoney { // once for each exception, also when it was resolved before without
			if err := h.ReturnMoney(ctx, tx, e); err != nil {
				return web.Answer{}, err
			}
		}
		return web.JSON(http.StatusOK, e)
	})
}
