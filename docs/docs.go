// Package docs serves this folder's documentation from the binary, so that what a service answers and what it says of
// itself are of one build: Swagger UI over openapi.yaml under /docs, and the Markdown pages as HTML.
package docs

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"strings"
	"unicode"

	swagger "github.com/swaggo/files/v2"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
)

// FS holds the pages.
//
//go:embed *.md openapi.yaml
var FS embed.FS

const page = `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{.Title}} - oncepay</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}
td,th{border:1px solid #ccc;padding:.3rem .6rem;text-align:left;vertical-align:top}code,pre{font-family:ui-monospace,monospace;background:#f4f4f4}
pre{padding:.8rem;overflow-x:auto}</style>
<p><a href="/docs">API</a>{{range .Pages}} · <a href="/docs/{{.}}">{{.}}</a>{{end}}</p>
{{.Body}}</html>`

const swaggerPage = `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>oncepay API</title>
<link rel="stylesheet" href="/docs/ui/swagger-ui.css">
<p style="font:16px system-ui;margin:1rem">{{range .Pages}}<a href="/docs/{{.}}">{{.}}</a> · {{end}}<a href="/openapi.yaml">openapi.yaml</a></p>
<div id="ui"></div><script src="/docs/ui/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({url: "/openapi.yaml", dom_id: "#ui", deepLinking: true})</script></html>`

// Handler serves /openapi.yaml, /docs and /docs/*. It renders everything once, so that a broken page is an error at start.
func Handler() (http.Handler, error) {
	files, err := fs.Glob(FS, "*.md")
	if err != nil {
		return nil, fmt.Errorf("docs: %w", err)
	}
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(file, ".md"))
	}
	mux := http.NewServeMux()
	serve := func(pattern, contentType string, body []byte) {
		mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.Write(body)
		})
	}
	for _, name := range names {
		html, err := render(name, names)
		if err != nil {
			return nil, err
		}
		serve("/docs/"+name, "text/html; charset=utf-8", html)
	}
	index, err := execute(swaggerPage, map[string]any{"Pages": names})
	if err != nil {
		return nil, err
	}
	serve("/docs", "text/html; charset=utf-8", index)
	spec, err := fs.ReadFile(FS, "openapi.yaml")
	if err != nil {
		return nil, fmt.Errorf("docs: %w", err)
	}
	serve("/openapi.yaml", "application/yaml", spec)
	mux.Handle("GET /docs/ui/", http.StripPrefix("/docs/ui/", http.FileServerFS(swagger.FS)))
	return mux, nil
}

func render(name string, names []string) ([]byte, error) {
	source, err := fs.ReadFile(FS, name+".md")
	if err != nil {
		return nil, fmt.Errorf("docs: %w", err)
	}
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	var body bytes.Buffer
	if err := md.Convert(source, &body, parser.WithContext(parser.NewContext(parser.WithIDs(anchors{})))); err != nil {
		return nil, fmt.Errorf("docs: render %s: %w", name, err)
	}
	// The pages are ours, compiled in; nobody else's text is among them.
	return execute(page, map[string]any{"Title": name, "Pages": names, "Body": template.HTML(body.String())})
}

// anchors makes heading ids as GitHub does, so that a link works in both places; goldmark's own would turn the underscores
// of problem codes into dashes. A page has no two headings of one name.
type anchors struct{}

func (anchors) Generate(heading []byte, _ ast.NodeKind) []byte {
	return bytes.Map(func(c rune) rune {
		switch {
		case unicode.IsLetter(c) || unicode.IsDigit(c) || c == '_' || c == '-':
			return unicode.ToLower(c)
		case c == ' ':
			return '-'
		default:
			return -1
		}
	}, heading)
}

func (anchors) Put([]byte) {}

func execute(text string, data any) ([]byte, error) {
	t, err := template.New("page").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("docs: %w", err)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		return nil, fmt.Errorf("docs: %w", err)
	}
	return out.Bytes(), nil
}
