package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"example.com/oncepay/docs"
	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/web"
)

// fact is what the code says of one problem code.
type fact struct {
	status    int
	layer     string // "": none
	retryable bool
}

// line is how errors.md states a fact, right under the code's heading.
func (f fact) line() string {
	layer, retryable := "no layer", "not retryable"
	if f.layer != "" {
		layer = "layer `" + f.layer + "`"
	}
	if f.retryable {
		retryable = "retryable"
	}
	return fmt.Sprintf("%d %s · %s · %s", f.status, http.StatusText(f.status), layer, retryable)
}

func TestErrorsPageHasEveryCodeWithItsFacts(t *testing.T) {
	facts := problemCodes(t)
	written := make(map[string]string) // code -> the line under its heading
	for section := range strings.SplitSeq(read(t, "errors.md"), "\n## ") {
		code, rest, _ := strings.Cut(section, "\n")
		line, _, _ := strings.Cut(strings.TrimLeft(rest, "\n"), "\n")
		written[code] = line
	}
	delete(written, "# Errors") // the page's head, before the first section
	for _, code := range slices.Sorted(maps.Keys(facts)) {
		if want := facts[code].line(); written[code] != want {
			t.Errorf("docs/errors.md: section %q begins with %q; write a section %q that begins with %q", code, written[code], "## "+code, want)
		}
		delete(written, code)
	}
	for code := range written {
		t.Errorf("docs/errors.md has a section %q, but no code makes such a problem; remove it", code)
	}
}

// A problem's type is /docs/errors#<code>: the anchor must be there in the page as it is served.
func TestProblemTypesPointToASection(t *testing.T) {
	handler, err := docs.Handler()
	if err != nil {
		t.Fatal(err)
	}
	page := httptest.NewRecorder()
	handler.ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/docs/errors", nil))
	for code := range problemCodes(t) {
		if !strings.Contains(page.Body.String(), `<h2 id="`+code+`">`) {
			t.Errorf("/docs/errors (status %d) has no heading with the id %q; use a code that is its own anchor", page.Code, code)
		}
	}
}

// problemCodes reads the source for every apperr.New(kind, code, ...) and its At(layer).
func problemCodes(t *testing.T) map[string]fact {
	t.Helper()
	s := source{t: t, fset: token.NewFileSet(), constants: make(map[string]string), facts: make(map[string]fact)}
	s.parse("../internal", "../cmd")
	for dir, files := range s.files {
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool { s.visit(dir, n); return true })
		}
	}
	if len(s.facts) == 0 {
		t.Fatal("found no problem code at all")
	}
	return s.facts
}

type source struct {
	t         *testing.T
	fset      *token.FileSet
	files     map[string][]*ast.File // by folder
	constants map[string]string      // string constants by "package.Name"
	facts     map[string]fact
}

func (s *source) parse(roots ...string) {
	s.files = make(map[string][]*ast.File)
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(s.fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			s.files[filepath.Dir(path)] = append(s.files[filepath.Dir(path)], file)
			s.readConstants(file)
			return nil
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *source) readConstants(file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, value := range spec.Values {
			if text, ok := literal(value); ok {
				s.constants[file.Name.Name+"."+spec.Names[i].Name] = text
			}
		}
		return true
	})
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// text is the value of a string literal or constant.
func (s *source) text(dir string, e ast.Expr) string {
	if text, ok := literal(e); ok {
		return text
	}
	name := ""
	switch e := e.(type) {
	case *ast.Ident:
		name = s.files[dir][0].Name.Name + "." + e.Name
	case *ast.SelectorExpr:
		name = fmt.Sprint(e.X) + "." + e.Sel.Name
	}
	text, ok := s.constants[name]
	if !ok {
		s.t.Errorf("%s: this test cannot read the value; use a string literal or constant", s.fset.Position(e.Pos()))
	}
	return text
}

func (s *source) visit(dir string, n ast.Node) {
	if lit, ok := n.(*ast.CompositeLit); ok && selector(lit.Type) == "apperr.Error" {
		s.t.Errorf("%s: make errors with apperr.New, so that this test finds their codes", s.fset.Position(n.Pos()))
	}
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return
	}
	if selector(call.Fun) == "apperr.New" {
		kind := s.kind(call.Args[0])
		s.learn(call, s.text(dir, call.Args[1]), func(f *fact) {
			f.status, f.retryable = web.Status(kind), (&apperr.Error{Kind: kind}).Retryable()
		})
	}
	if method, ok := call.Fun.(*ast.SelectorExpr); ok && method.Sel.Name == "At" {
		if made := newBelow(method.X); made != nil {
			layer := s.text(dir, call.Args[0])
			s.learn(call, s.text(dir, made.Args[1]), func(f *fact) { f.layer = layer })
		}
	}
}

// learn notes a fact about a code, and complains when two places say different things of it.
func (s *source) learn(at ast.Node, code string, set func(*fact)) {
	old, known := s.facts[code]
	f := old
	set(&f)
	if known && old.status != 0 && old.status != f.status || old.layer != "" && old.layer != f.layer {
		s.t.Errorf("%s: code %q is made here as %q and elsewhere as %q; give one meaning one code", s.fset.Position(at.Pos()), code, f.line(), old.line())
	}
	s.facts[code] = f
}

// newBelow finds the apperr.New that a chain of calls such as New(...).At(...).After(...) begins with.
func newBelow(e ast.Expr) *ast.CallExpr {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return nil
	}
	if selector(call.Fun) == "apperr.New" {
		return call
	}
	if method, ok := call.Fun.(*ast.SelectorExpr); ok {
		return newBelow(method.X)
	}
	return nil
}

func selector(e ast.Expr) string {
	if sel, ok := e.(*ast.SelectorExpr); ok {
		return fmt.Sprint(sel.X) + "." + sel.Sel.Name
	}
	return ""
}

func (s *source) kind(e ast.Expr) apperr.Kind {
	kinds := map[string]apperr.Kind{
		"apperr.Internal": apperr.Internal, "apperr.Invalid": apperr.Invalid, "apperr.Unauthenticated": apperr.Unauthenticated,
		"apperr.Forbidden": apperr.Forbidden, "apperr.NotFound": apperr.NotFound, "apperr.Conflict": apperr.Conflict, "apperr.Declined": apperr.Declined,
		"apperr.InProgress": apperr.InProgress, "apperr.KeyReused": apperr.KeyReused, "apperr.TooLarge": apperr.TooLarge,
		"apperr.UnsupportedMedia": apperr.UnsupportedMedia, "apperr.MethodNotAllowed": apperr.MethodNotAllowed,
		"apperr.RateLimited": apperr.RateLimited, "apperr.Unavailable": apperr.Unavailable,
	}
	kind, ok := kinds[selector(e)]
	if !ok {
		s.t.Errorf("%s: this test does not know the kind; add it here", s.fset.Position(e.Pos()))
	}
	return kind
}
