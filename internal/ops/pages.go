package ops

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/web"
)

// What the pages show of the API's answers.
type (
	exception struct {
		ID          int64          `json:"id"`
		Kind        string         `json:"kind"`
		Subject     string         `json:"subject"`
		OrderNo     string         `json:"order_no"`
		Amount      money.Amount   `json:"amount"`
		Currency    money.Currency `json:"currency"`
		Detail      string         `json:"detail"`
		BlocksOrder bool           `json:"blocks_order"`
		CreatedAt   time.Time      `json:"created_at"`
	}
	deadLetter struct {
		ID        int64     `json:"id"`
		Consumer  string    `json:"consumer"`
		MsgID     string    `json:"msg_id"`
		Topic     string    `json:"topic"`
		OrderNo   string    `json:"order_no"`
		Tries     int       `json:"tries"`
		LastError string    `json:"last_error"`
		CreatedAt time.Time `json:"created_at"`
	}
	reconciliation struct {
		ID          int64        `json:"id"`
		Channel     string       `json:"channel"`
		Date        string       `json:"date"`
		Status      string       `json:"status"`
		BillLines   int          `json:"bill_lines"`
		Matched     int          `json:"matched"`
		UpdatedAt   time.Time    `json:"updated_at"`
		Differences []difference `json:"differences"`
	}
	difference struct {
		Kind       string         `json:"kind"`
		Subject    string         `json:"subject"`
		OrderNo    string         `json:"order_no"`
		OurAmount  *money.Amount  `json:"our_amount"`
		BillAmount *money.Amount  `json:"bill_amount"`
		Currency   money.Currency `json:"currency"`
		Status     string         `json:"status"`
		Detail     string         `json:"detail"`
	}
	deed struct {
		ActorID   int64     `json:"actor_id"`
		Action    string    `json:"action"`
		Subject   string    `json:"subject"`
		Detail    string    `json:"detail"`
		CreatedAt time.Time `json:"created_at"`
	}
	order struct {
		OrderNo        string         `json:"order_no"`
		UserID         int64          `json:"user_id"`
		Status         string         `json:"status"`
		Version        int            `json:"version"`
		Amount         money.Amount   `json:"amount"`
		RefundedAmount money.Amount   `json:"refunded_amount"`
		Currency       money.Currency `json:"currency"`
	}
	event struct {
		At     time.Time `json:"at"`
		Kind   string    `json:"kind"`
		What   string    `json:"what"`
		ID     int64     `json:"id"`
		Ref    string    `json:"ref"`
		Detail string    `json:"detail"`
		Layer  string    `json:"layer"`
	}
	violation struct {
		Invariant string `json:"invariant"`
		Subject   string `json:"subject"`
		Detail    string `json:"detail"`
	}
	list[T any] struct {
		Data       []T    `json:"data"`
		NextCursor string `json:"next_cursor"`
	}
)

// homeView is the overview.
type homeView struct {
	Banner          string
	Exceptions      list[exception]
	DeadLetters     list[deadLetter]
	Reconciliations list[reconciliation]
	Audit           list[deed]
	Guards          []metrics.GuardCount
}

func (d *Desk) home(r *http.Request) (web.Answer, error) { return d.overview(r, http.StatusOK, "") }

// overview reads each list's first page. A list that cannot be read is said, not left out.
func (d *Desk) overview(r *http.Request, status int, banner string) (web.Answer, error) {
	v := homeView{Banner: banner, Guards: d.metrics.GuardCounts()}
	for path, into := range map[string]any{
		"/v1/ops/exceptions?status=open&limit=50": &v.Exceptions,
		"/v1/ops/dead-letters?limit=50":           &v.DeadLetters,
		"/v1/ops/reconciliations?limit=14":        &v.Reconciliations,
		"/v1/ops/audit?limit=20":                  &v.Audit,
	} {
		if err := d.ask(r, tokenOf(r), path, into); err != nil {
			return d.stranger(r, err)
		}
	}
	return d.page("home", status, v)
}

func tokenOf(r *http.Request) string {
	c, err := r.Cookie(cookie)
	if err != nil {
		return ""
	}
	return c.Value
}

// stranger shows the way in to whom the API does not know, and what it said to anybody else. Asking for a page is answered with
// the way in; a button that did nothing says that it was not let through.
func (d *Desk) stranger(r *http.Request, err error) (web.Answer, error) {
	var e *refused
	if !errors.As(err, &e) {
		return web.Answer{}, err
	}
	if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden {
		status := http.StatusOK
		if r.Method == http.MethodPost {
			status = http.StatusUnauthorized
		}
		return d.page("login", status, "")
	}
	return d.page("refused", e.Status, e)
}

type orderView struct {
	Order  order
	Events list[event]
}

// order shows an order's whole story.
func (d *Desk) order(r *http.Request) (web.Answer, error) {
	var v orderView
	path := "/v1/orders/" + url.PathEscape(r.URL.Query().Get("order_no"))
	if err := d.ask(r, tokenOf(r), path, &v.Order); err != nil {
		return d.stranger(r, err)
	}
	if err := d.ask(r, tokenOf(r), path+"/timeline", &v.Events); err != nil {
		return d.stranger(r, err)
	}
	return d.page("order", http.StatusOK, v)
}

func (d *Desk) invariants(r *http.Request) (web.Answer, error) {
	var v struct {
		Violations []violation `json:"violations"`
	}
	if err := d.ask(r, tokenOf(r), "/v1/ops/invariants", &v); err != nil {
		return d.stranger(r, err)
	}
	return d.page("invariants", http.StatusOK, v.Violations)
}

func (d *Desk) reconciliation(r *http.Request) (web.Answer, error) {
	var v reconciliation
	if err := d.ask(r, tokenOf(r), "/v1/ops/reconciliations/"+url.PathEscape(chi.URLParam(r, "id")), &v); err != nil {
		return d.stranger(r, err)
	}
	return d.page("reconciliation", http.StatusOK, v)
}

// do is a button: one request to the API under the form's key, then the overview with what the thing is now.
func (d *Desk) do(r *http.Request, path string, body any, thing string) (web.Answer, error) {
	var now struct {
		Status string `json:"status"`
	}
	err := d.send(r, tokenOf(r), http.MethodPost, path, r.PostFormValue("key"), body, &now)
	var e *refused
	switch {
	case err == nil:
		return d.overview(r, http.StatusOK, thing+" is "+now.Status+" now.")
	case errors.As(err, &e) && e.Status != http.StatusUnauthorized && e.Status != http.StatusForbidden:
		return d.overview(r, e.Status, "Refused: "+said(err))
	default:
		return d.stranger(r, err)
	}
}

func (d *Desk) press(path, thing string) web.Handler {
	return func(r *http.Request) (web.Answer, error) {
		return d.do(r, fmt.Sprintf(path, url.PathEscape(chi.URLParam(r, "id"))), nil, thing)
	}
}

func (d *Desk) resolve(r *http.Request) (web.Answer, error) {
	body := map[string]any{"resolution": r.PostFormValue("resolution"), "return_money": r.PostFormValue("return_money") == "on"}
	return d.do(r, "/v1/ops/exceptions/"+url.PathEscape(chi.URLParam(r, "id"))+"/resolve", body, "The exception")
}

func (d *Desk) reconcile(r *http.Request) (web.Answer, error) {
	body := map[string]any{"channel": r.PostFormValue("channel"), "date": r.PostFormValue("date")}
	return d.do(r, "/v1/ops/reconciliations", body, "The comparison")
}
