package order

import (
	"context"
	"database/sql"
	"math"
	"net/http"
	"strconv"

	"example.com/oncepay/internal/activity"
	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/token"
	"example.com/oncepay/internal/web"
)

// HTTP holds the handlers of orders.
type HTTP struct{ Service *Service }

// numberLength of an order_no: a UUID in hexadecimal digits, without dashes.
const numberLength = 32

// maxQuantity keeps stock sums far from int64's end.
const maxQuantity = math.MaxInt32

// Create answers POST /v1/orders.
func (h *HTTP) Create(r *http.Request) (web.Answer, error) {
	in, err := parseCreate(r)
	if err != nil {
		return web.Answer{}, err
	}
	return h.Service.Create(r.Context(), in)
}

func parseCreate(r *http.Request) (CreateInput, error) {
	var req struct {
		SKUID      int64   `json:"sku_id"`
		Quantity   int64   `json:"quantity"`
		ActivityID *string `json:"activity_id"`
		CouponNo   *string `json:"coupon_no"`
	}
	body, err := web.DecodeJSON(r, &req)
	if err != nil {
		return CreateInput{}, err
	}
	in := CreateInput{UserID: auth.From(r.Context()).UserID, SKUID: req.SKUID, Quantity: req.Quantity}
	if in.Key, err = idemkey.Required(r, opCreate, body); err != nil {
		return CreateInput{}, err
	}
	if in.Token, err = token.FromHeader(r); err != nil {
		return CreateInput{}, err
	}
	if req.SKUID < 1 {
		return CreateInput{}, apperr.New(apperr.Invalid, "field_invalid", "sku_id is a positive whole number.")
	}
	if req.Quantity < 1 || req.Quantity > maxQuantity {
		return CreateInput{}, apperr.New(apperr.Invalid, "field_invalid", "quantity is a whole number from 1 to %d.", maxQuantity)
	}
	if req.ActivityID != nil {
		in.ActivityID = *req.ActivityID
		if err := activity.ParseID(in.ActivityID); err != nil {
			return CreateInput{}, err
		}
	}
	if req.CouponNo != nil {
		in.CouponNo = *req.CouponNo
		if activity.ParseID(in.CouponNo) != nil {
			return CreateInput{}, apperr.New(apperr.Invalid, "coupon_no_invalid", "A coupon_no has 1 to 64 letters, digits, _ or -.")
		}
	}
	return in, nil
}

// NumberFromPath reads {order_no}. What cannot be an order number is no order: it must not reach the database, where even a
// binary collation ignores a trailing space.
func NumberFromPath(r *http.Request) (string, error) {
	no := web.PathParam(r, "order_no")
	if !IsNumber(no) {
		return "", errNotFound()
	}
	return no, nil
}

// IsNumber reports whether s has the form of an order_no (and of a pay_no, which is made alike).
func IsNumber(s string) bool {
	ok := len(s) == numberLength
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'f'
	}
	return ok
}

// Get answers GET /v1/orders/{order_no}.
func (h *HTTP) Get(r *http.Request) (web.Answer, error) {
	orderNo, err := NumberFromPath(r)
	if err != nil {
		return web.Answer{}, err
	}
	o, err := h.Service.Visible(r.Context(), h.Service.DB, orderNo, auth.From(r.Context()))
	if err != nil {
		return web.Answer{}, err
	}
	return o.answer()
}

// List answers GET /v1/orders: a user's own orders; for an operator everybody's, or those of ?user_id=.
func (h *HTTP) List(r *http.Request) (web.Answer, error) {
	page, err := web.ParsePage(r)
	if err != nil {
		return web.Answer{}, err
	}
	caller := auth.From(r.Context())
	user := caller.UserID
	if caller.Ops {
		if user, err = userFilter(r); err != nil {
			return web.Answer{}, err
		}
	}
	orders, err := list(r.Context(), h.Service.DB, user, page)
	if err != nil {
		return web.Answer{}, err
	}
	paged := web.Paged(page, orders, func(o Order) int64 { return o.ID })
	views := web.List[view]{Data: make([]view, len(paged.Data)), NextCursor: paged.NextCursor}
	for i, o := range paged.Data {
		views.Data[i] = o.view()
	}
	return web.JSON(http.StatusOK, views)
}

func userFilter(r *http.Request) (int64, error) {
	raw := r.URL.Query().Get("user_id")
	if raw == "" {
		return 0, nil
	}
	id, err := strconv.ParseInt(raw, 10, 64)
	if err != nil || id < 1 {
		return 0, apperr.New(apperr.Invalid, "user_id_invalid", "user_id is a positive whole number.")
	}
	return id, nil
}

// Cancel answers POST /v1/orders/{order_no}/cancel.
func (h *HTTP) Cancel(r *http.Request) (web.Answer, error) {
	return h.step(r, "order.cancel", h.Service.Cancel)
}

// Ship answers POST /v1/orders/{order_no}/ship.
func (h *HTTP) Ship(r *http.Request) (web.Answer, error) {
	return h.step(r, "order.ship", h.Service.Ship)
}

// Finish answers POST /v1/orders/{order_no}/finish.
func (h *HTTP) Finish(r *http.Request) (web.Answer, error) {
	return h.step(r, "order.finish", h.Service.Finish)
}

// step runs a move. No lock is taken: the update on status and version decides alone, and a second caller would only have
// queued for the answer "already". A key is honoured if one is sent.
func (h *HTTP) step(r *http.Request, operation string, move func(context.Context, *sql.Tx, string, auth.Caller) (Order, error)) (web.Answer, error) {
	orderNo, err := NumberFromPath(r)
	if err != nil {
		return web.Answer{}, err
	}
	body, err := web.NoBody(r)
	if err != nil {
		return web.Answer{}, err
	}
	key, err := idemkey.Optional(r, operation, body)
	if err != nil {
		return web.Answer{}, err
	}
	ctx := r.Context()
	return h.Service.Keys.Once(ctx, key, func(tx *sql.Tx) (web.Answer, error) {
		o, err := move(ctx, tx, orderNo, auth.From(ctx))
		if err != nil {
			return web.Answer{}, err
		}
		return o.answer()
	})
}
