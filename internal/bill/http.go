package bill

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/web"
)

// HTTP holds the operator's handlers.
type HTTP struct {
	Service *Service
	Keys    *idemkey.Store
}

// Run answers POST /v1/ops/reconciliations: 201 the first time a day is run, 200 after, 202 when the job has to finish it. The work
// spans several transactions, each of which can come again; so the key is kept after it, and only saves the work.
func (h *HTTP) Run(r *http.Request) (web.Answer, error) {
	var req struct {
		Channel string `json:"channel"`
		Date    string `json:"date"`
	}
	body, err := web.DecodeJSON(r, &req)
	if err != nil {
		return web.Answer{}, err
	}
	key, err := idemkey.Optional(r, "reconciliation.run", body)
	if err != nil {
		return web.Answer{}, err
	}
	ctx := r.Context()
	if stored, err := h.Keys.Find(ctx, key); err != nil {
		return web.Answer{}, err
	} else if stored != nil {
		return *stored, nil
	}
	runCtx := ctx
	if end, limited := ctx.Deadline(); limited {
		// A fifth of the request's time is left for the answer: what is not finished is answered with 202 and not cut off.
		var cancel context.CancelFunc
		runCtx, cancel = context.WithTimeout(ctx, time.Until(end)*4/5)
		defer cancel()
	}
	rec, created, err := h.Service.Reconcile(runCtx, req.Channel, req.Date, auth.From(ctx))
	if err != nil {
		return web.Answer{}, err
	}
	status := http.StatusOK
	switch {
	case rec.Status == Running:
		status = http.StatusAccepted
	case created:
		status = http.StatusCreated
	}
	answer, err := web.JSON(status, rec)
	if err != nil {
		return web.Answer{}, err
	}
	answer.Location = fmt.Sprintf("/v1/ops/reconciliations/%d", rec.ID)
	return h.Keys.Keep(ctx, key, answer)
}

// Get answers GET /v1/ops/reconciliations/{id}.
func (h *HTTP) Get(r *http.Request) (web.Answer, error) {
	id, err := web.PathID(r)
	if err != nil {
		return web.Answer{}, err
	}
	rec, err := h.Service.Get(r.Context(), id)
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, rec)
}

// List answers GET /v1/ops/reconciliations: newest first, without their differences.
func (h *HTTP) List(r *http.Request) (web.Answer, error) {
	page, err := web.ParsePage(r)
	if err != nil {
		return web.Answer{}, err
	}
	list, err := newest(r.Context(), h.Service.DB, page)
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, web.Paged(page, list, func(rec Reconciliation) int64 { return rec.ID }))
}
