package inventory

import (
	"database/sql"
	"errors"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/google/uuid"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/bizkey"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/web"
)

// HTTP holds the operator's handlers.
type HTTP struct {
	Service *Service
	Keys    *idemkey.Store
}

// ParseSKUID reads a SKU id from a path.
func ParseSKUID(s string) (int64, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id < 1 || strconv.FormatInt(id, 10) != s {
		return 0, apperr.New(apperr.Invalid, "sku_id_invalid", "A sku_id is a positive whole number.")
	}
	return id, nil
}

// PutSKU answers PUT /v1/ops/skus/{sku_id}.
func (h *HTTP) PutSKU(r *http.Request) (web.Answer, error) {
	id, err := ParseSKUID(web.PathParam(r, "sku_id"))
	if err != nil {
		return web.Answer{}, err
	}
	var req struct {
		Title    string         `json:"title"`
		Price    *money.Amount  `json:"price"` // a pointer, so that one that was forgotten does not make the goods free
		Currency money.Currency `json:"currency"`
		Stock    int64          `json:"stock"`
	}
	if _, err := web.DecodeJSON(r, &req); err != nil {
		return web.Answer{}, err
	}
	if req.Price == nil {
		return web.Answer{}, apperr.New(apperr.Invalid, "field_invalid", "price is a whole number of minor units; 0 means free.")
	}
	d := Definition{Title: req.Title, Price: *req.Price, Currency: req.Currency, Stock: req.Stock}
	if err := d.Check(); err != nil {
		return web.Answer{}, err
	}
	sku, created, err := h.Service.Put(r.Context(), id, d)
	if err != nil {
		return web.Answer{}, err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return web.JSON(status, sku)
}

// GetSKU answers GET /v1/ops/skus/{sku_id}.
func (h *HTTP) GetSKU(r *http.Request) (web.Answer, error) {
	id, err := ParseSKUID(web.PathParam(r, "sku_id"))
	if err != nil {
		return web.Answer{}, err
	}
	sku, err := Get(r.Context(), h.Service.DB, id)
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, sku)
}

// MoveStock answers POST /v1/ops/skus/{sku_id}/stock-movements. With an Idempotency-Key it moves once for that key; an
// operator who sends none says that each request is a new delivery.
func (h *HTTP) MoveStock(r *http.Request) (web.Answer, error) {
	id, err := ParseSKUID(web.PathParam(r, "sku_id"))
	if err != nil {
		return web.Answer{}, err
	}
	var req struct {
		Delta  int64  `json:"delta"`
		Reason string `json:"reason"`
	}
	body, err := web.DecodeJSON(r, &req)
	if err != nil {
		return web.Answer{}, err
	}
	if req.Delta == 0 || req.Delta > MaxStock || req.Delta < -MaxStock {
		return web.Answer{}, apperr.New(apperr.Invalid, "field_invalid", "delta is a whole number from -%d to %d, and not 0.", MaxStock, MaxStock)
	}
	if req.Reason == "" || utf8.RuneCountInString(req.Reason) > maxText {
		return web.Answer{}, apperr.New(apperr.Invalid, "field_invalid", "reason has 1 to %d characters.", maxText)
	}
	key, err := idemkey.Optional(r, "stock.move", body)
	if err != nil {
		return web.Answer{}, err
	}
	cause := adjustCause(auth.From(r.Context()).UserID, key, uuid.NewString())
	answer, err := h.Keys.Once(r.Context(), key, func(tx *sql.Tx) (web.Answer, error) {
		m, err := h.Service.Adjust(r.Context(), tx, id, req.Delta, cause, req.Reason)
		if err != nil {
			return web.Answer{}, err
		}
		return web.JSON(http.StatusCreated, m)
	})
	if !errors.Is(err, ErrRepeated) {
		return answer, err
	}
	// The key's record is gone (past its retention, or the guard is off) but the movement's own row is not.
	m, err := h.Service.Adjusted(r.Context(), cause)
	if err != nil {
		return web.Answer{}, err
	}
	if m.SKUID != id || m.Delta != req.Delta || m.Reason != req.Reason {
		return web.Answer{}, idemkey.Reused().At(apperr.LayerUniqueIndex)
	}
	return web.JSON(http.StatusCreated, m)
}

// adjustCause names an operator's movement by what makes it this one: the key, or else the request itself.
func adjustCause(operator int64, key idemkey.Key, random string) string {
	if key.Sent() {
		return bizkey.Build("s1:k", strconv.FormatInt(operator, 10), key.Value)
	}
	return bizkey.Build("s1:r", random)
}
