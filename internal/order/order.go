package order

import (
	"net/http"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/web"
)

// Order is one purchase of one SKU. Times are UTC, cut to microseconds, as the database keeps them.
type Order struct {
	ID             int64
	OrderNo        string
	UserID         int64
	SKUID          int64
	ActivityID     string // "": outside any activity
	Attempt        int    // within the activity
	BizToken       string
	Status         Status
	Version        int // counts the moves, creation included
	Quantity       int64
	Amount         money.Amount // to pay, after Discount
	Discount       money.Amount
	CouponNo       string
	RefundedAmount money.Amount
	RefundSeq      int // counts the changes of RefundedAmount
	Currency       money.Currency
	ExpiresAt      time.Time
	PaidAt         *time.Time
	CreatedAt      time.Time
}

// view is an order as clients see it (contract section 3).
type view struct {
	OrderNo        string         `json:"order_no"`
	UserID         int64          `json:"user_id"`
	SKUID          int64          `json:"sku_id"`
	Quantity       int64          `json:"quantity"`
	ActivityID     *string        `json:"activity_id"`
	CouponNo       *string        `json:"coupon_no"`
	Amount         money.Amount   `json:"amount"`
	Discount       money.Amount   `json:"discount"`
	Currency       money.Currency `json:"currency"`
	Status         Status         `json:"status"`
	Version        int            `json:"version"`
	ExpiresAt      time.Time      `json:"expires_at"`
	CreatedAt      time.Time      `json:"created_at"`
	PaidAt         *time.Time     `json:"paid_at"`
	RefundedAmount money.Amount   `json:"refunded_amount"`
}

func (o Order) view() view {
	return view{
		OrderNo: o.OrderNo, UserID: o.UserID, SKUID: o.SKUID, Quantity: o.Quantity,
		ActivityID: web.OrNull(o.ActivityID), CouponNo: web.OrNull(o.CouponNo),
		Amount: o.Amount, Discount: o.Discount, Currency: o.Currency, Status: o.Status, Version: o.Version,
		ExpiresAt: o.ExpiresAt, CreatedAt: o.CreatedAt, PaidAt: o.PaidAt, RefundedAmount: o.RefundedAmount,
	}
}

// Money says how an order's money stands, for messages. Of two that speak of one order, the one with the greater RefundSeq is
// newer, whichever comes first.
type Money struct {
	Paid      money.Amount `json:"paid"`       // minor units that paid the order; 0 before
	Refunded  money.Amount `json:"refunded"`   // what of it has gone back so far
	RefundSeq int          `json:"refund_seq"` // counts the changes of Refunded
}

// Money returns how the order's money stands.
func (o Order) Money() Money {
	m := Money{Refunded: o.RefundedAmount, RefundSeq: o.RefundSeq}
	if o.PaidAt != nil {
		m.Paid = o.Amount
	}
	return m
}

// message is the payload of an order's messages: the order as clients see it, and its money.
type message struct {
	view
	Money
}

// answer shows an order; created also says where it is.
func (o Order) answer() (web.Answer, error) { return web.JSON(http.StatusOK, o.view()) }

func (o Order) created() (web.Answer, error) {
	a, err := web.JSON(http.StatusCreated, o.view())
	a.Location = "/v1/orders/" + o.OrderNo
	return a, err
}

// errNotFound is the answer for an order that is not there or not the caller's: which of the two is nobody's business.
func errNotFound() *apperr.Error {
	return apperr.New(apperr.NotFound, "order_not_found", "There is no such order.")
}
