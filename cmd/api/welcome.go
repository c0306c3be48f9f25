package main

import (
	"context"
	"fmt"
	"io"
	"text/template"
	"time"

	"example.com/oncepay/internal/activity"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/inventory"
)

// The small catalogue of the embedded default, which README.md's lines use.
const (
	demoUser     = 1001
	demoOperator = 1
	demoSKU      = 1
	demoActivity = "spring-sale"
)

// seed puts the demo catalogue into an embedded database. What is there already keeps its stock.
func (s *service) seed(ctx context.Context) error {
	for id, d := range map[int64]inventory.Definition{
		demoSKU: {Title: "Tea, 100 g", Price: 1999, Currency: "CNY", Stock: 1000},
		2:       {Title: "Teapot", Price: 12900, Currency: "CNY", Stock: 10},
		3:       {Title: "Last cup of its kind", Price: 4900, Currency: "CNY", Stock: 1},
		4:       {Title: "Sample, free of charge", Price: 0, Currency: "CNY", Stock: 1000},
	} {
		if _, err := inventory.Get(ctx, s.stores.db, id); err == nil {
			continue // what a person has changed since stays
		}
		if _, _, err := s.stock.Put(ctx, id, d); err != nil {
			return fmt.Errorf("seed: %w", err)
		}
	}
	if _, err := activity.Get(ctx, s.stores.db, demoActivity); err == nil {
		return nil
	}
	now := s.now()
	_, err := s.activity.Put(ctx, activity.Activity{
		ID: demoActivity, Title: "Spring sale", StartsAt: now.Truncate(24 * time.Hour), EndsAt: now.Truncate(24*time.Hour).AddDate(1, 0, 0),
		Coupon: &activity.Coupon{Template: "spring-5", Discount: 500, Limit: 100},
	})
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	return nil
}

const welcomeText = `
oncepay is ready on {{.URL}}

  documentation  {{.URL}}/docs
  operator       {{.URL}}/ops (paste the token of $OPS, without "Authorization: Bearer")
  MySQL          {{.MySQL}}
  Redis          {{.Redis}}
{{- range .Disabled}}
  WARNING        guard {{.}} is disabled
{{- end}}
{{- if .Token}}

Paste this into another terminal (user {{.User}}'s token and an operator's, good for 24 hours):

  export API={{.URL}}
  export AUTH='Authorization: Bearer {{.Token}}'
  export OPS='Authorization: Bearer {{.OpsToken}}'
  post() { curl -sSi -X POST "$API$1" -H "$AUTH" -H 'Content-Type: application/json' "${@:2}" | tr -d '\r' | grep -E '^(HTTP|Location|Idempotent|Retry|[{]|success)'; }
  get() { curl -sS "$API$1" -H "${2:-$AUTH}"; }
  field() { sed -n 's/.*"'"$1"'":"\([^"]*\)".*/\1/p'; }

A submit token, as a page fetches it when it opens, and an order. Send the last line as often as you like: it stays one order.

  TOKEN=$(post /v1/tokens -d '{"scene":"order.create"}' | field token)
  post /v1/orders -H "X-Submit-Token: $TOKEN" -H 'Idempotency-Key: my-first-order-00001' -d '{"sku_id":{{.SKU}},"quantity":1}'
{{- end}}

README.md goes on from here. Ctrl-C ends everything this process started.
`

// welcome tells the person who started the service how to go on. In production it says where it listens and no more.
func (s *service) welcome(w io.Writer, url string) error {
	data := map[string]any{
		"URL": url, "MySQL": s.stores.mysqlAt, "Redis": s.stores.redisAt, "Disabled": s.cfg.DisableGuards,
		"User": demoUser, "SKU": demoSKU,
	}
	if !s.cfg.Production() {
		for name, caller := range map[string]auth.Caller{"Token": {UserID: demoUser}, "OpsToken": {UserID: demoOperator, Ops: true}} {
			signed, err := auth.Sign(s.cfg.JWTSecret, caller, s.now().Add(devTokenLife))
			if err != nil {
				return err
			}
			data[name] = signed
		}
	}
	if err := template.Must(template.New("welcome").Parse(welcomeText)).Execute(w, data); err != nil {
		return fmt.Errorf("write welcome: %w", err)
	}
	return nil
}
