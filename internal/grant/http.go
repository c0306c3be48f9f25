package grant

import (
	"net/http"

	"example.com/oncepay/internal/activity"
	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/web"
)

// HTTP holds the handlers of coupons, points and codes.
type HTTP struct{ Service *Service }

// Claim answers POST /v1/activities/{activity_id}/coupons.
func (h *HTTP) Claim(r *http.Request) (web.Answer, error) {
	id := web.PathParam(r, "activity_id")
	if err := activity.ParseID(id); err != nil {
		return web.Answer{}, err
	}
	body, err := web.NoBody(r)
	if err != nil {
		return web.Answer{}, err
	}
	key, err := idemkey.Required(r, opClaim, body)
	if err != nil {
		return web.Answer{}, err
	}
	return h.Service.Claim(r.Context(), auth.From(r.Context()).UserID, id, key)
}

// Redeem answers POST /v1/points/redemptions.
func (h *HTTP) Redeem(r *http.Request) (web.Answer, error) {
	var req struct {
		Points   int64  `json:"points"`
		Template string `json:"coupon_template"`
	}
	body, err := web.DecodeJSON(r, &req)
	if err != nil {
		return web.Answer{}, err
	}
	key, err := idemkey.Required(r, opRedeem, body)
	if err != nil {
		return web.Answer{}, err
	}
	if req.Points != RedemptionPrice {
		return web.Answer{}, apperr.New(apperr.Invalid, "points_invalid", "A coupon costs %d points; send points as that number.", RedemptionPrice)
	}
	if err := checkTemplate(req.Template); err != nil {
		return web.Answer{}, err
	}
	return h.Service.Redeem(r.Context(), req.Template, key)
}

// MakeCode answers POST /v1/coupon-codes.
func (h *HTTP) MakeCode(r *http.Request) (web.Answer, error) {
	var req struct {
		Template string `json:"template"`
	}
	body, err := web.DecodeJSON(r, &req)
	if err != nil {
		return web.Answer{}, err
	}
	key, err := idemkey.Required(r, opCode, body)
	if err != nil {
		return web.Answer{}, err
	}
	if err := checkTemplate(req.Template); err != nil {
		return web.Answer{}, err
	}
	return h.Service.MakeCode(r.Context(), auth.From(r.Context()), req.Template, key)
}

// Coupons answers GET /v1/me/coupons[?status=UNUSED|USED|VOID].
func (h *HTTP) Coupons(r *http.Request) (web.Answer, error) {
	page, err := web.ParsePage(r)
	if err != nil {
		return web.Answer{}, err
	}
	status, err := statusFilter(r)
	if err != nil {
		return web.Answer{}, err
	}
	coupons, err := listCoupons(r.Context(), h.Service.DB, auth.From(r.Context()).UserID, status, page)
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, views(web.Paged(page, coupons, func(c Coupon) int64 { return c.ID }), Coupon.view))
}

// statusFilter reads ?status=; nil stands for all.
func statusFilter(r *http.Request) (*Status, error) {
	name := r.URL.Query().Get("status")
	if name == "" {
		return nil, nil
	}
	for _, s := range []Status{Unused, Used, Void} {
		if s.String() == name {
			return &s, nil
		}
	}
	return nil, apperr.New(apperr.Invalid, "status_invalid", "status is UNUSED, USED or VOID.")
}

// Points answers GET /v1/me/points: the balance, and why it is that, newest first.
func (h *HTTP) Points(r *http.Request) (web.Answer, error) {
	page, err := web.ParsePage(r)
	if err != nil {
		return web.Answer{}, err
	}
	user := auth.From(r.Context()).UserID
	entries, err := listEntries(r.Context(), h.Service.DB, user, page)
	if err != nil {
		return web.Answer{}, err
	}
	balance, err := getBalance(r.Context(), h.Service.DB, user)
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, struct {
		Balance int64 `json:"balance"`
		web.List[entryView]
	}{balance, views(web.Paged(page, entries, func(e Entry) int64 { return e.ID }), Entry.view)})
}

// views shows each row of a page.
func views[T, V any](page web.List[T], view func(T) V) web.List[V] {
	shown := web.List[V]{Data: make([]V, len(page.Data)), NextCursor: page.NextCursor}
	for i, row := range page.Data {
		shown.Data[i] = view(row)
	}
	return shown
}
