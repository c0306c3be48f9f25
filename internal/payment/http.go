package payment

import (
	"net/http"
	"unicode/utf8"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/web"
)

// HTTP holds the handlers of payments and refunds.
type HTTP struct{ Service *Service }

// Pay answers POST /v1/orders/{order_no}/payments.
func (h *HTTP) Pay(r *http.Request) (web.Answer, error) {
	orderNo, err := order.NumberFromPath(r)
	if err != nil {
		return web.Answer{}, err
	}
	var req struct {
		Channel string `json:"channel"`
	}
	body, err := web.DecodeJSON(r, &req)
	if err != nil {
		return web.Answer{}, err
	}
	key, err := idemkey.Required(r, opPay, body)
	if err != nil {
		return web.Answer{}, err
	}
	return h.Service.Pay(r.Context(), PayInput{
		OrderNo: orderNo, Channel: req.Channel, By: auth.From(r.Context()), Key: key.ForMoney(),
	})
}

// GetPayment answers GET /v1/payments/{pay_no}.
func (h *HTTP) GetPayment(r *http.Request) (web.Answer, error) {
	payNo := web.PathParam(r, "pay_no")
	if !order.IsNumber(payNo) { // made like one
		return web.Answer{}, errPaymentNotFound()
	}
	p, err := h.Service.GetPayment(r.Context(), payNo, auth.From(r.Context()))
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, p.view())
}

const maxReason = 255 // characters; the column's width

// Refund answers POST /v1/orders/{order_no}/refunds.
func (h *HTTP) Refund(r *http.Request) (web.Answer, error) {
	orderNo, err := order.NumberFromPath(r)
	if err != nil {
		return web.Answer{}, err
	}
	var req struct {
		RefundNo *string      `json:"refund_no"`
		Amount   money.Amount `json:"amount"`
		Reason   string       `json:"reason"`
	}
	body, err := web.DecodeJSON(r, &req)
	if err != nil {
		return web.Answer{}, err
	}
	key, err := idemkey.Required(r, opRefund, body)
	if err != nil {
		return web.Answer{}, err
	}
	in := RefundInput{OrderNo: orderNo, Amount: req.Amount, Reason: req.Reason, By: auth.From(r.Context()), Key: key.ForMoney()}
	if req.RefundNo != nil {
		in.RefundNo = *req.RefundNo
		if err := checkRefundNo(in.RefundNo); err != nil {
			return web.Answer{}, err
		}
	}
	if req.Amount < 1 {
		return web.Answer{}, apperr.New(apperr.Invalid, "amount_invalid", "amount is a whole number of minor units, at least 1.")
	}
	if req.Reason == "" || utf8.RuneCountInString(req.Reason) > maxReason {
		return web.Answer{}, apperr.New(apperr.Invalid, "field_invalid", "reason has 1 to %d characters.", maxReason)
	}
	return h.Service.RequestRefund(r.Context(), in)
}

// GetRefund answers GET /v1/refunds/{refund_no}.
func (h *HTTP) GetRefund(r *http.Request) (web.Answer, error) {
	refundNo := web.PathParam(r, "refund_no")
	if !storable(refundNo) {
		return web.Answer{}, errRefundNotFound()
	}
	refund, err := h.Service.GetRefund(r.Context(), refundNo, auth.From(r.Context()))
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, refund.view())
}
