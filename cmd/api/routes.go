package main

import (
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-chi/httprate"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/oncepay/docs"
	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/bill"
	"example.com/oncepay/internal/callback"
	"example.com/oncepay/internal/dedup"
	"example.com/oncepay/internal/exception"
	"example.com/oncepay/internal/grant"
	"example.com/oncepay/internal/inventory"
	"example.com/oncepay/internal/ops"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/payment"
	"example.com/oncepay/internal/web"
)

// routes is every URL of the service on one screen.
func (s *service) routes() (http.Handler, error) {
	documentation, err := docs.Handler()
	if err != nil {
		return nil, err
	}
	orders := &order.HTTP{Service: s.orders}
	stock := &inventory.HTTP{Service: s.stock, Keys: s.keys}
	payments := &payment.HTTP{Service: s.payments}
	callbacks := &callback.HTTP{Service: s.callbacks, Keys: s.keys}
	exceptions := &exception.HTTP{Store: s.exceptions, Keys: s.keys, ReturnMoney: s.payments.ReturnHeld}
	grants := &grant.HTTP{Service: s.grants}
	letters := &dedup.HTTP{Service: s.messages, Keys: s.keys, Wake: s.jobs.Wake}
	bills := &bill.HTTP{Service: s.bills, Keys: s.keys}

	r := chi.NewRouter()
	desk, err := ops.New(r, s.metrics, s.cfg.Production())
	if err != nil {
		return nil, err
	}
	r.Use(web.Observe(s.log, s.metrics, s.now), web.SecurityHeaders, web.Deadline(s.cfg.RequestTimeout))
	r.Use(middleware.GetHead) // curl -I and probes
	r.NotFound(web.Handle(web.NoRoute))
	r.MethodNotAllowed(web.Handle(web.NoMethod))

	r.Get("/healthz", web.Handle(s.healthz))
	r.Get("/readyz", web.Handle(s.readyz))
	r.Method(http.MethodGet, "/metrics", promhttp.HandlerFor(s.metrics.Registry, promhttp.HandlerOpts{}))
	r.Method(http.MethodGet, "/openapi.yaml", documentation)
	r.Method(http.MethodGet, "/docs", documentation)
	r.Method(http.MethodGet, "/docs/*", documentation)

	r.Method(http.MethodGet, "/ops", desk)
	r.Method(http.MethodGet, "/ops/*", desk)
	r.Method(http.MethodPost, "/ops/*", desk)

	r.Post("/v1/callbacks/{channel}", web.Handle(callbacks.Receive))
	if s.mockpay != nil {
		r.Mount(mockpayPath, http.StripPrefix(mockpayPath, s.mockpay))
	}

	r.Group(func(r chi.Router) {
		r.Use(auth.Require(s.cfg.JWTSecret, s.now), s.limitRate)

		r.Post("/v1/tokens", web.Handle(s.tokens.IssueHTTP))
		r.Get("/v1/idempotency-keys/{key}", web.Handle(s.keys.LookupHTTP))

		r.Get("/v1/orders", web.Handle(orders.List))
		r.Get("/v1/orders/{order_no}", web.Handle(orders.Get))
		r.Post("/v1/orders/{order_no}/cancel", web.Handle(orders.Cancel))
		r.Post("/v1/orders/{order_no}/finish", web.Handle(orders.Finish))
		r.Get("/v1/orders/{order_no}/timeline", web.Handle(s.timeline.HTTP))
		r.Get("/v1/payments/{pay_no}", web.Handle(payments.GetPayment))
		r.Get("/v1/refunds/{refund_no}", web.Handle(payments.GetRefund))
		r.Get("/v1/me/coupons", web.Handle(grants.Coupons))
		r.Get("/v1/me/points", web.Handle(grants.Points))

		r.Group(func(r chi.Router) { // what demands an Idempotency-Key and is one action if it is equal
			r.Use(s.deriveKeys)

			r.Post("/v1/orders", web.Handle(orders.Create))
			r.Post("/v1/orders/{order_no}/payments", web.Handle(payments.Pay))
			r.Post("/v1/orders/{order_no}/refunds", web.Handle(payments.Refund))
			r.Post("/v1/activities/{activity_id}/coupons", web.Handle(grants.Claim))
			r.Post("/v1/points/redemptions", web.Handle(grants.Redeem))
		})

		r.Group(func(r chi.Router) {
			r.Use(auth.RequireOps)

			r.Post("/v1/orders/{order_no}/ship", web.Handle(orders.Ship))
			r.Post("/v1/coupon-codes", web.Handle(grants.MakeCode)) // demands a key of the caller's own: each code is new
			r.Get("/v1/ops/invariants", web.Handle(s.recon.HTTP))
			r.Get("/v1/ops/exceptions", web.Handle(exceptions.List))
			r.Post("/v1/ops/exceptions/{id}/resolve", web.Handle(exceptions.Resolve))
			r.Post("/v1/ops/notices/{id}/replay", web.Handle(callbacks.Replay))
			r.Post("/v1/ops/reconciliations", web.Handle(bills.Run))
			r.Get("/v1/ops/reconciliations", web.Handle(bills.List))
			r.Get("/v1/ops/reconciliations/{id}", web.Handle(bills.Get))
			r.Get("/v1/ops/dead-letters", web.Handle(letters.List))
			r.Post("/v1/ops/dead-letters/{id}/replay", web.Handle(letters.Replay))
			r.Post("/v1/ops/dead-letters/{id}/discard", web.Handle(letters.Discard))
			r.Get("/v1/ops/audit", web.Handle(s.audit.HTTP))
			r.Put("/v1/ops/skus/{sku_id}", web.Handle(stock.PutSKU))
			r.Get("/v1/ops/skus/{sku_id}", web.Handle(stock.GetSKU))
			r.Post("/v1/ops/skus/{sku_id}/stock-movements", web.Handle(stock.MoveStock))
			r.Put("/v1/ops/activities/{activity_id}", web.Handle(s.activity.PutHTTP))
		})
	})
	return r, nil
}

// deriveKeys gives old callers a key for a while, where DERIVE_IDEMPOTENCY_KEYS says so.
func (s *service) deriveKeys(next http.Handler) http.Handler {
	if s.cfg.DeriveKeysFor == 0 {
		return next
	}
	return s.keys.Derive(s.cfg.DeriveKeysFor)(next)
}

// limitRate answers 429 to a caller who sends more than RATE_LIMIT requests a second.
func (s *service) limitRate(next http.Handler) http.Handler {
	if s.cfg.RateLimit == 0 {
		return next
	}
	byCaller := func(r *http.Request) (string, error) {
		return strconv.FormatInt(auth.From(r.Context()).UserID, 10), nil
	}
	return httprate.LimitBy(s.cfg.RateLimit, time.Second, byCaller,
		httprate.WithLimitHandler(web.Handle(func(*http.Request) (web.Answer, error) {
			return web.Answer{}, apperr.New(apperr.RateLimited, "rate_limited", "More than %d requests in one second.", s.cfg.RateLimit).
				After(time.Second)
		})),
	)(next)
}
