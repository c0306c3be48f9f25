package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// B48: no statement of ours tells the server to pass over an error, or to make a duplicate something else.
func TestNoStatementHidesErrors(t *testing.T) {
	hides := regexp.MustCompile(`(?i)\bIGNORE\b|ON\s+DUPLICATE\s+KEY|\bREPLACE\s+INTO\b`)
	inserts := 0
	check := func(file, statement string) {
		if hides.MatchString(statement) {
			t.Errorf("%s: %s", file, statement)
		}
		if strings.Contains(statement, "INSERT INTO") || strings.Contains(statement, "CREATE TABLE") {
			inserts++
		}
	}
	for _, file := range productionFiles(t) {
		ast.Inspect(parse(t, file), func(n ast.Node) bool {
			if s, ok := sqlOf(n); ok {
				check(file, s)
			}
			return true
		})
	}
	migrations, err := filepath.Glob("../../migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range migrations {
		check(file, read(t, file))
	}
	if inserts < 10 {
		t.Errorf("only %d statements were looked at; the search is broken", inserts)
	}
}

// B49, B102: an update that can miss says so by its count of rows. Each UPDATE goes through mysqldb.ExpectOne or Matched, or its
// function reads RowsAffected; or it is one whose count means nothing, and says why.
func TestEveryUpdateReadsItsAffectedRows(t *testing.T) {
	countless := map[string]string{
		"ResolveSubject": "there may be no trouble to resolve, or a person was faster: both are right",
		"release":        "a lease that has gone to another relay is not this one's to end",
		"mark":           "sent is sent, whoever marked it first",
		"settle":         "the same of messages that nobody is owed any more",
		"rest":           "it is for those that are due, be they none",
	}
	updates := 0
	for _, file := range productionFiles(t) {
		for _, decl := range parse(t, file).Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			found, read := updatesOf(fn)
			updates += found
			if _, ok := countless[fn.Name.Name]; ok && found == 1 && read == 0 {
				delete(countless, fn.Name.Name)
				continue
			}
			if found > read {
				t.Errorf("%s: %s has %d UPDATEs and looks at the affected rows %d times", file, fn.Name.Name, found, read)
			}
		}
	}
	for name := range countless {
		t.Errorf("%s is no function with one UPDATE that does not look; take it off the list", name)
	}
	if updates < 4 {
		t.Errorf("only %d UPDATEs found; the search is broken", updates)
	}
}

// updatesOf counts a function's UPDATE statements, and how often it looks at affected rows.
func updatesOf(fn *ast.FuncDecl) (updates, looks int) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if s, ok := sqlOf(n); ok && strings.HasPrefix(strings.TrimSpace(s), "UPDATE ") {
			updates++
		}
		if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "ExpectOne" || sel.Sel.Name == "Matched" || sel.Sel.Name == "RowsAffected") {
			looks++
		}
		return true
	})
	return updates, looks
}

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// sqlOf returns the value of a string constant; comments are none.
func sqlOf(n ast.Node) (string, bool) {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}
