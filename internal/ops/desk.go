package ops

import (
	"bytes"
	_ "embed" // desk.html and desk.css
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/google/uuid"

	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/money"
	"example.com/oncepay/internal/web"
)

//go:embed desk.html
var deskHTML string

//go:embed desk.css
var deskCSS string

// Desk serves the pages under /ops.
type Desk struct {
	api     http.Handler
	metrics *metrics.Metrics
	secure  bool
	pages   *template.Template
	inner   http.Handler
}

// New makes a desk over the API's handler. secure: the cookie travels over https only, as it should everywhere but in dev.
func New(api http.Handler, m *metrics.Metrics, secure bool) (*Desk, error) {
	pages, err := template.New("desk").Funcs(template.FuncMap{
		"amount": money.Format,
		"time":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
		"key":    uuid.NewString, // a form's Idempotency-Key: new for each page, the same for each press
	}).Parse(deskHTML)
	if err != nil {
		return nil, fmt.Errorf("ops: pages: %w", err)
	}
	d := &Desk{api: api, metrics: m, secure: secure, pages: pages}
	d.inner = d.routes()
	return d, nil
}

// ServeHTTP allows the page's own style and forms: no script, no frame, nothing from elsewhere.
func (d *Desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	d.inner.ServeHTTP(w, r.WithContext(withoutRoute{r.Context()}))
}

// routes is every page of the desk on one screen.
func (d *Desk) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(middleware.RequestSize(maxForm), middleware.GetHead)
	// Together with the cookie's SameSite: no other site's page can press a button here.
	r.Use(http.NewCrossOriginProtection().Handler)
	r.Get("/ops", web.Handle(d.home))
	r.Get("/ops/", web.Handle(d.home))
	r.Get("/ops/style.css", web.Handle(style))
	r.Post("/ops/login", d.login)
	r.Post("/ops/logout", d.logout)
	r.Get("/ops/orders", web.Handle(d.order))
	r.Get("/ops/invariants", web.Handle(d.invariants))
	r.Get("/ops/reconciliations/{id}", web.Handle(d.reconciliation))
	r.Post("/ops/reconciliations", web.Handle(d.reconcile))
	r.Post("/ops/exceptions/{id}/resolve", web.Handle(d.resolve))
	r.Post("/ops/dead-letters/{id}/replay", web.Handle(d.press("/v1/ops/dead-letters/%s/replay", "The message")))
	r.Post("/ops/dead-letters/{id}/discard", web.Handle(d.press("/v1/ops/dead-letters/%s/discard", "The message")))
	r.Post("/ops/notices/{id}/replay", web.Handle(d.press("/v1/ops/notices/%s/replay", "The notice")))
	r.NotFound(web.Handle(web.NoRoute))
	r.MethodNotAllowed(web.Handle(web.NoMethod))
	return r
}

func style(*http.Request) (web.Answer, error) {
	return web.Answer{Status: http.StatusOK, ContentType: "text/css; charset=utf-8", Body: []byte(deskCSS)}, nil
}

const (
	// cookie holds the operator's bearer token.
	cookie = "oncepay_ops"
	// maxForm bounds what a form sends; its longest field is a resolution of 1024 characters.
	maxForm = 16 << 10
)

// login keeps a token that the API accepts from an operator.
func (d *Desk) login(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimSpace(r.PostFormValue("token"))
	if err := d.ask(r, token, "/v1/ops/exceptions?limit=1", nil); err != nil {
		answer, failed := d.page("login", http.StatusUnauthorized, "This token does not open the desk: "+said(err))
		if failed != nil {
			answer = web.Problem(r.Context(), failed)
		}
		web.Write(w, answer)
		return
	}
	http.SetCookie(w, d.token(token, 0))
	http.Redirect(w, r, "/ops", http.StatusSeeOther)
}

func (d *Desk) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, d.token("", -1))
	http.Redirect(w, r, "/ops", http.StatusSeeOther)
}

func (d *Desk) token(value string, age int) *http.Cookie {
	return &http.Cookie{Name: cookie, Value: value, Path: "/ops", MaxAge: age, HttpOnly: true, Secure: d.secure, SameSite: http.SameSiteStrictMode}
}

// page renders one of the pages.
func (d *Desk) page(name string, status int, data any) (web.Answer, error) {
	var b bytes.Buffer
	if err := d.pages.ExecuteTemplate(&b, name, data); err != nil {
		return web.Answer{}, fmt.Errorf("ops: render %s: %w", name, err)
	}
	return web.Answer{Status: status, ContentType: "text/html; charset=utf-8", Body: b.Bytes()}, nil
}

// refused is what the API answered instead of a 2xx: its problem.
type refused struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func (e *refused) Error() string { return fmt.Sprintf("%d %s: %s", e.Status, e.Code, e.Detail) }

// said is the API's refusal in its own words.
func said(err error) string {
	if e, ok := err.(*refused); ok && e.Detail != "" {
		return e.Detail
	}
	return "the service did not answer as it should."
}

// ask sends a GET to the API with the operator's token and reads the answer into v, which may be nil.
func (d *Desk) ask(r *http.Request, token, path string, v any) error {
	return d.send(r, token, http.MethodGet, path, "", nil, v)
}

// send is one request to the API, in this process. It runs in the page's request: same id in the logs, same deadline.
func (d *Desk) send(r *http.Request, token, method, path, key string, body, v any) error {
	payload := []byte{}
	if body != nil {
		var err error
		if payload, err = json.Marshal(body); err != nil {
			return fmt.Errorf("ops: encode: %w", err)
		}
	}
	// chi keeps its route in the context: the API's router must not go on with the page's.
	ctx := r.Context()
	req, err := http.NewRequestWithContext(withoutRoute{ctx}, method, path, bytes.NewReader(payload))
	if err != nil {
		return fmt.Errorf("ops: %w", err)
	}
	req.RemoteAddr = r.RemoteAddr
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("X-Request-Id", web.RequestID(ctx))
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	answer := &memory{header: make(http.Header), status: http.StatusOK}
	d.api.ServeHTTP(answer, req)
	if answer.status >= http.StatusMultipleChoices {
		e := &refused{}
		if err := json.Unmarshal(answer.body.Bytes(), e); err != nil {
			return fmt.Errorf("ops: %s %s answered %d: %w", method, path, answer.status, err)
		}
		return e
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(answer.body.Bytes(), v); err != nil {
		return fmt.Errorf("ops: read the answer of %s %s: %w", method, path, err)
	}
	return nil
}
