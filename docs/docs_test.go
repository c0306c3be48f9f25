package docs_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/oncepay/docs"
	"example.com/oncepay/internal/bill"
	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/payment"
)

var update = flag.Bool("update", false, "write the generated parts of the pages")

func TestOpenAPIIsValid(t *testing.T) {
	if err := spec(t).Validate(t.Context()); err != nil {
		t.Errorf("docs/openapi.yaml: %v", err)
	}
}

// Each problem code has one example of its own name, with the facts of the code, and it is shown under its own status.
func TestOpenAPIExamplesAreTheProblemsOfTheCode(t *testing.T) {
	doc, facts := spec(t), problemCodes(t)
	for code, example := range doc.Components.Examples {
		want, ok := facts[code]
		if !ok {
			t.Errorf("docs/openapi.yaml: components/examples/%s is no code of ours; remove it", code)
			continue
		}
		value := example.Value.Value.(map[string]any)
		layer, _ := value["layer"].(string)
		got := fact{status: number(value["status"]), layer: layer, retryable: value["retryable"] == true}
		if got != want || value["code"] != code || value["type"] != "/docs/errors#"+code {
			t.Errorf("docs/openapi.yaml: components/examples/%s says %v; the code says %q", code, value, want.line())
		}
		delete(facts, code)
	}
	for code := range facts {
		t.Errorf("docs/openapi.yaml: components/examples has no %s; add it, and name it where it can be answered", code)
	}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status, response := range op.Responses.Map() {
				for name, example := range problems(response.Value) {
					if fmt.Sprint(example.Value.Value.(map[string]any)["status"]) != status {
						t.Errorf("docs/openapi.yaml: %s %s shows %s under %s", method, path, name, status)
					}
				}
			}
		}
	}
}

func problems(r *openapi3.Response) openapi3.Examples {
	if media := r.Content["application/problem+json"]; media != nil {
		return media.Examples
	}
	return nil
}

func number(v any) int {
	n, _ := strconv.Atoi(fmt.Sprint(v))
	return n
}

func TestConfigurationPageListsEveryVariable(t *testing.T) {
	var table strings.Builder
	table.WriteString("| variable | default | meaning |\n| --- | --- | --- |\n")
	for _, v := range config.Variables() {
		value := "empty"
		if v.Default != "" {
			value = "`" + v.Default + "`"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", v.Name, value, v.Meaning)
	}
	generated(t, "configuration.md", table.String())
}

func TestMetricsPageListsEveryMetric(t *testing.T) {
	m := metrics.New()
	m.GuardHit("", "", "") // a labelled metric shows itself only once it has a value
	m.LockWaited(0)
	m.TxRetried("")
	m.HTTPServed("", "", "", time.Second)
	m.ExceptionOpened("")
	m.ChannelDown("", "", false)
	m.JobFailed("")
	m.NoticeRefused("", "")
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	missing := described(t, m.Registry)
	var table strings.Builder
	table.WriteString("| name | type | labels | meaning |\n| --- | --- | --- | --- |\n")
	for _, f := range families {
		if !missing[f.GetName()] {
			continue
		}
		delete(missing, f.GetName())
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp())
	}
	for name := range missing {
		t.Errorf("metric %s has no value here; give it one at the top of this test", name)
	}
	generated(t, "metrics.md", table.String())
}

// described returns the names of our own metrics, without those of the Go runtime and the process.
func described(t *testing.T, registry *prometheus.Registry) map[string]bool {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() { registry.Describe(descs); close(descs) }()
	names := make(map[string]bool)
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range descs {
		found := name.FindStringSubmatch(d.String())
		if found == nil {
			t.Fatalf("no name in %s", d)
		}
		if !strings.HasPrefix(found[1], "go_") && !strings.HasPrefix(found[1], "process_") {
			names[found[1]] = true
		}
	}
	return names
}

func TestStateMachinePageIsTheStateTable(t *testing.T) {
	var diagram strings.Builder
	rows := make(map[string]bool)
	diagram.WriteString("```mermaid\nstateDiagram-v2\n    [*] --> INIT\n")
	for _, from := range order.Statuses() {
		for _, to := range from.Next() {
			fmt.Fprintf(&diagram, "    %s --> %s\n", from, to)
			rows[fmt.Sprintf("\n| %s → %s |", from, to)] = true
		}
		if len(from.Next()) == 0 {
			fmt.Fprintf(&diagram, "    %s --> [*]\n", from)
		}
	}
	diagram.WriteString("```\n")
	generated(t, "state-machine.md", diagram.String())

	page := read(t, "state-machine.md")
	for row := range rows {
		if strings.Count(page, row) != 1 {
			t.Errorf("docs/state-machine.md: the table of moves has no single row that begins with %q; add it", strings.TrimSpace(row))
		}
	}
	for _, row := range regexp.MustCompile(`\n\| [A-Z]+ → [A-Z]+ \|`).FindAllString(page, -1) {
		if !rows[row] {
			t.Errorf("docs/state-machine.md: the row %q is no move of the state table; remove it", strings.TrimSpace(row))
		}
	}
}

// The diagrams of attempts and refunds are drawn by hand; that every state is in them, and no other, is checked.
func TestStateMachinePageHasEveryStateOfMoney(t *testing.T) {
	page := read(t, "state-machine.md")
	for section, state := range map[string]func(i uint8) fmt.Stringer{
		"## The states of an attempt to pay": func(i uint8) fmt.Stringer { return payment.Status(i) },
		"## The states of a refund":          func(i uint8) fmt.Stringer { return payment.RefundStatus(i) },
	} {
		_, rest, _ := strings.Cut(page, section)
		diagram, _, _ := strings.Cut(rest, "```\n\n")
		drawn := make(map[string]bool)
		for _, name := range regexp.MustCompile(`[A-Z]{2,}`).FindAllString(diagram, -1) {
			drawn[name] = true
		}
		states := make(map[string]bool)
		for i := uint8(0); !strings.Contains(state(i).String(), "("); i++ { // a number without a name ends the list
			states[state(i).String()] = true
		}
		if !maps.Equal(drawn, states) {
			t.Errorf("docs/state-machine.md: %q draws %v; the code has %v", section, drawn, states)
		}
	}
}

// The states in the description are those of the code, in the form in which they are sent.
func TestOpenAPIListsTheStatesOfMoney(t *testing.T) {
	schemas := spec(t).Components.Schemas
	for schema, state := range map[string]func(i uint8) fmt.Stringer{
		"Payment":        func(i uint8) fmt.Stringer { return payment.Status(i) },
		"Refund":         func(i uint8) fmt.Stringer { return payment.RefundStatus(i) },
		"Notice":         func(i uint8) fmt.Stringer { return payment.Disposal(i) },
		"Reconciliation": func(i uint8) fmt.Stringer { return bill.Status(i) },
		"Difference":     func(i uint8) fmt.Stringer { return bill.Outcome(i) },
	} {
		var sent []any
		for i := uint8(0); !strings.Contains(state(i).String(), "("); i++ {
			sent = append(sent, state(i))
		}
		want, err := json.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(schemas[schema].Value.Properties["status"].Value.Enum)
		if err != nil || string(got) != string(want) {
			t.Errorf("docs/openapi.yaml: %s.status lists %s (%v); the code sends %s", schema, got, err, want)
		}
	}
}

// Whoever gets an exception finds what to do about it: each kind has its section, and no section has lost its kind.
func TestExceptionsPageHasEveryKind(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../internal/exception/exception.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && fmt.Sprint(spec.Type) == "Kind" {
			kind, _ := literal(spec.Values[0])
			kinds[kind] = true
		}
		return true
	})
	sections := make(map[string]bool)
	for section := range strings.SplitSeq(read(t, "exceptions.md"), "\n## ") {
		kind, text, _ := strings.Cut(section, "\n")
		for _, part := range []string{"What happened: ", "The money: ", "Check: ", "Do: "} {
			if !strings.HasPrefix(kind, "# ") && strings.Count(text, "\n"+part) != 1 {
				t.Errorf("docs/exceptions.md: section %q has no single %q", kind, part)
			}
		}
		sections[kind] = true
	}
	delete(sections, "# Exceptions")
	if !maps.Equal(sections, kinds) {
		t.Errorf("docs/exceptions.md has the sections %v; the kinds are %v", slices.Sorted(maps.Keys(sections)), slices.Sorted(maps.Keys(kinds)))
	}
	var listed []string
	for _, kind := range spec(t).Components.Schemas["Exception"].Value.Properties["kind"].Value.Enum {
		listed = append(listed, fmt.Sprint(kind))
	}
	if slices.Sort(listed); !slices.Equal(listed, slices.Sorted(maps.Keys(kinds))) {
		t.Errorf("docs/openapi.yaml: Exception.kind lists %v; the kinds are %v", listed, slices.Sorted(maps.Keys(kinds)))
	}
}

// Nobody can follow a page to code that has moved away: the files and tests that pages name exist.
func TestPagesNameOnlyWhatExists(t *testing.T) {
	tests := testNames(t)
	quoted := regexp.MustCompile("`([^`\n]+)`")
	for _, page := range pages(t) {
		for _, found := range quoted.FindAllStringSubmatch(read(t, page), -1) {
			name := found[1]
			top, _, isPath := strings.Cut(name, "/")
			if isPath && slices.Contains([]string{"cmd", "internal", "docs", "migrations", "scripts"}, top) {
				if matches, err := filepath.Glob(filepath.Join("..", name)); err != nil || len(matches) == 0 {
					t.Errorf("docs/%s names %s, which is not there", page, name)
				}
			}
			if strings.HasPrefix(name, "Test") && !tests[name] {
				t.Errorf("docs/%s names %s, which is no test", page, name)
			}
		}
	}
}

func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range declared.FindAllSubmatch(text, -1) {
			names[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestRulesPageAnswersEveryRule(t *testing.T) {
	got := make(map[string]int)
	for _, found := range regexp.MustCompile(`(?m)^\| (T?\d+) \|`).FindAllStringSubmatch(read(t, "rules.md"), -1) {
		got[found[1]]++
	}
	want := make(map[string]int)
	for i := range 99 {
		want[strconv.Itoa(i+1)] = 1
	}
	for i := range 8 {
		want["T"+strconv.Itoa(i+1)] = 1
	}
	if !maps.Equal(got, want) {
		t.Errorf("docs/rules.md has the rows %v; it should have 1 to 99 and T1 to T8, each once", got)
	}
}

func TestEveryPageIsServed(t *testing.T) {
	handler, err := docs.Handler()
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{"/docs": "SwaggerUIBundle", "/openapi.yaml": "openapi: 3", "/docs/ui/swagger-ui-bundle.js": "SwaggerUIBundle"}
	for _, page := range pages(t) {
		title, _, _ := strings.Cut(strings.TrimPrefix(read(t, page), "# "), "\n")
		paths["/docs/"+strings.TrimSuffix(page, ".md")] = title + "</h1>"
	}
	for path, want := range paths {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("GET %s: status %d, without %q", path, w.Code, want)
		}
	}
}

func pages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("*.md")
	if err != nil || len(found) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	return found
}

func spec(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	if err != nil {
		t.Fatalf("docs/openapi.yaml: %v", err)
	}
	return doc
}

func read(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// generated compares the generated part of a page with what it should be, or writes it.
func generated(t *testing.T, page, want string) {
	t.Helper()
	const begin, end = "<!-- generated by go test ./docs -update -->\n\n", "\n<!-- end of the generated part -->"
	before, rest, found := strings.Cut(read(t, page), begin)
	got, after, closed := strings.Cut(rest, end)
	switch {
	case !found || !closed:
		t.Errorf("docs/%s has lost the lines %q and %q; put them back", page, strings.TrimSpace(begin), strings.TrimSpace(end))
	case got == want:
	case *update:
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Error(err)
		}
	default:
		t.Errorf("docs/%s does not agree with the code; run go test ./docs -update\n got: %s\nwant: %s", page, got, want)
	}
}
