package main

import (
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-chi/chi/v5"

	"example.com/oncepay/docs"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/metrics"
)

// bareRouter is the router without anything behind it: good for asking what it routes and whom it lets through.
func bareRouter(t *testing.T) chi.Routes {
	t.Helper()
	cfg, err := config.Load(func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	handler, err := (&service{cfg: cfg, metrics: metrics.New(), log: slog.New(slog.DiscardHandler), now: time.Now}).routes()
	if err != nil {
		t.Fatal(err)
	}
	return handler.(chi.Routes)
}

// documented returns every operation of docs/openapi.yaml by "METHOD /path".
func documented(t *testing.T) map[string]*openapi3.Operation {
	t.Helper()
	data, err := docs.FS.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(data)
	if err != nil {
		t.Fatal(err)
	}
	operations := make(map[string]*openapi3.Operation)
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			operations[method+" "+path] = op
		}
	}
	return operations
}

func TestOpenAPIHasEveryRouteAndNoOther(t *testing.T) {
	routed := make(map[string]bool)
	err := chi.Walk(bareRouter(t), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if wild, ok := strings.CutSuffix(route, "*"); ok {
			route = wild + "{path}" // OpenAPI's nearest to a wildcard
		}
		routed[method+" "+route] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	operations := documented(t)
	for route := range routed {
		if operations[route] == nil {
			t.Errorf("docs/openapi.yaml does not describe %s; add it under paths", route)
		}
	}
	for route := range operations {
		if !routed[route] {
			t.Errorf("docs/openapi.yaml describes %s, which cmd/api/routes.go does not route; remove it", route)
		}
	}
}

// Who is let in is part of the description too: a bearer token unless security says otherwise, an operator where 403 is
// listed, and 401 wherever anything has to be proved. Channels prove themselves by signature.
func TestOpenAPISaysWhoIsLetIn(t *testing.T) {
	router := bareRouter(t).(http.Handler)
	user, err := auth.Sign(config.DevJWTSecret, auth.Caller{UserID: 1001}, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	operations := documented(t)
	for _, route := range slices.Sorted(maps.Keys(operations)) {
		op := operations[route]
		method, path, _ := strings.Cut(route, " ")
		bearer := op.Security == nil // the document's own, which is the bearer token
		if got := ask(router, method, path, ""); (got == http.StatusUnauthorized) != bearer {
			t.Errorf("%s without a token is %d; docs/openapi.yaml says that it needs a token: %v", route, got, bearer)
		}
		if proof := bearer || len(*op.Security) > 0; proof != (op.Responses.Value("401") != nil) {
			t.Errorf("docs/openapi.yaml: %s needs a token or signature: %v; list 401 exactly then", route, proof)
		}
		if !bearer {
			continue
		}
		// Past the role check there is nothing behind the bare router, and the answer is 400, or 500 of a panic.
		opsOnly := op.Responses.Value("403") != nil
		if got := ask(router, method, path, user); (got == http.StatusForbidden) != opsOnly {
			t.Errorf("%s as a user is %d; docs/openapi.yaml lists 403: %v", route, got, opsOnly)
		}
	}
}

func ask(router http.Handler, method, path, token string) int {
	r := httptest.NewRequest(method, strings.NewReplacer("{", "", "}", "").Replace(path), nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	router.ServeHTTP(w, r)
	return w.Code
}
