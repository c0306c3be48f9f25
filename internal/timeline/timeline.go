// Package timeline tells an order's whole story in the order it happened: moves, attempts to pay, notices with what became of
// each (repeats too, and the guard that stopped them), money, refunds, messages and exceptions. It reads any table and writes
// none.
package timeline

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/payment"
	"example.com/oncepay/internal/web"
)

// Event is one line of the story.
type Event struct {
	At     time.Time `json:"at"`
	Kind   string    `json:"kind"`   // transition, payment, notice, money, refund, message, exception
	What   string    `json:"what"`   // e.g. "INIT -> PAID"
	ID     int64     `json:"id"`     // of its row, e.g. for POST /v1/ops/notices/{id}/replay
	Ref    string    `json:"ref"`    // the number of the thing it is about
	Detail string    `json:"detail"` // for people
	Layer  string    `json:"layer"`  // the guard that stopped it, or ""

	rank int // among events of one instant: causes before what they bring about
}

// Teller reads stories.
type Teller struct {
	DB     *mysqldb.DB
	Orders *order.Service
}

// source is one table's part: a query of (id, at, what, ref, detail, layer, status) for an order, and how to put it in words.
type source struct {
	kind, query string
	show        func(e *Event, status int)
}

// sources stand in the order of causes: events of one instant are told in it.
func sources() []source {
	return []source{
		{"notice", `
			SELECT id, received_at, CONCAT(channel, ' ', event), trade_no, outcome, layer, status FROM t_channel_notice WHERE order_no = ? ORDER BY id`,
			func(e *Event, status int) { e.Detail = payment.Disposal(status).String() + ": " + e.Detail }},
		{"payment", `
			SELECT id, create_time, CONCAT('attempt on ', channel), pay_no, '', '', status FROM t_payment WHERE order_no = ? ORDER BY id`,
			func(e *Event, status int) { e.Detail = "now " + payment.Status(status).String() }},
		{"money", `
			SELECT id, create_time, CONCAT('trade on ', channel, ' heard by ', source), trade_no,
				CONCAT(amount, ' ', currency, CASE disposition WHEN 0 THEN ', paid the order' WHEN 1 THEN ', is returned' ELSE ', waits for a person' END), '', 0
			FROM t_trade WHERE order_no = ? ORDER BY id`, nil},
		{"transition", `
			SELECT id, create_time, COALESCE(from_status, ''), cause, CONCAT('by ', actor), '', to_status FROM t_order_history WHERE order_no = ? ORDER BY version`,
			func(e *Event, status int) { e.What = move(e.What, order.Status(status)) }},
		{"refund", `
			SELECT id, create_time, CONCAT(CASE auto WHEN 1 THEN 'automatic refund of ' ELSE 'refund of ' END, amount, ' ', currency), refund_no, '', '', status
			FROM t_refund WHERE order_no = ? ORDER BY id`,
			func(e *Event, status int) { e.Detail = "now " + payment.RefundStatus(status).String() }},
		{"message", `
			SELECT id, create_time, topic, msg_id, CASE WHEN sent_at IS NULL THEN 'not sent yet' ELSE 'sent' END, '', 0 FROM t_outbox WHERE partition_key = ? ORDER BY id`, nil},
		{"exception", `
			SELECT id, create_time, kind, subject, detail, '', 0 FROM t_exception WHERE order_no = ? ORDER BY id`, nil},
	}
}

// Tell returns an order's story.
func (t *Teller) Tell(ctx context.Context, orderNo string) ([]Event, error) {
	events := []Event{}
	for rank, src := range sources() {
		part, err := t.read(ctx, src, rank, orderNo)
		if err != nil {
			return nil, fmt.Errorf("timeline: %s: %w", src.kind, err)
		}
		events = append(events, part...)
	}
	slices.SortStableFunc(events, func(a, b Event) int {
		if c := a.At.Compare(b.At); c != 0 {
			return c
		}
		return a.rank - b.rank
	})
	return events, nil
}

func (t *Teller) read(ctx context.Context, src source, rank int, orderNo string) ([]Event, error) {
	return mysqldb.Collect(func(row mysqldb.Scanner) (Event, error) {
		e := Event{Kind: src.kind, rank: rank}
		var status int
		err := row.Scan(&e.ID, &e.At, &e.What, &e.Ref, &e.Detail, &e.Layer, &status)
		if err == nil && src.show != nil {
			src.show(&e, status)
		}
		return e, err
	})(t.DB.QueryContext(ctx, src.query, orderNo))
}

// move turns what was left ("" or a number) and what was entered into "INIT -> PAID".
func move(from string, to order.Status) string {
	n, err := strconv.Atoi(from)
	if err != nil {
		return "made " + to.String()
	}
	return order.Status(n).String() + " -> " + to.String()
}

// HTTP answers GET /v1/orders/{order_no}/timeline.
func (t *Teller) HTTP(r *http.Request) (web.Answer, error) {
	orderNo, err := order.NumberFromPath(r)
	if err != nil {
		return web.Answer{}, err
	}
	if _, err := t.Orders.Visible(r.Context(), t.DB, orderNo, auth.From(r.Context())); err != nil {
		return web.Answer{}, err
	}
	events, err := t.Tell(r.Context(), orderNo)
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, struct {
		OrderNo string  `json:"order_no"`
		Data    []Event `json:"data"`
	}{orderNo, events})
}
