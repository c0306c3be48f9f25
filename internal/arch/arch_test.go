// Package arch holds no code: its test keeps the packages in their order.
package arch

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "example.com/oncepay/"

// height of each package. A package imports only packages of a lower height, so that there is one way to read the code:
// from the top down. Test files may also import internal/testenv.
var height = map[string]int{
	"migrations": 0, "docs": 0,
	"internal/apperr": 0, "internal/bizkey": 0, "internal/money": 0, "internal/metrics": 0, "internal/config": 0, "internal/redisdb": 0,
	"internal/embedded": 1, "internal/mysqldb": 1, "internal/lock": 1,
	"internal/web":  2,
	"internal/auth": 3, "internal/outbox": 3,
	"internal/audit": 4, "internal/idemkey": 4, "internal/token": 4, "internal/broker": 4, "internal/notify": 4,
	"internal/jobs": 1, "internal/ledger": 1,
	"internal/inventory": 5, "internal/activity": 5, "internal/exception": 5,
	"internal/dedup": 6, "internal/grant": 6,
	"internal/order":   7,
	"internal/payment": 8, "internal/mockpay": 8,
	"internal/payment/mockpay": 9, "internal/callback": 9, "internal/bill": 9,
	"internal/recon": 10, "internal/timeline": 10,
	"internal/ops":     11,
	"internal/testenv": 12,
	"internal/arch":    13,
	"cmd/api":          13, "cmd/mockpay": 13,
}

// Imports are parsed here, not asked from `go list`: a test that shells out is cached as passing.
func TestPackagesImportOnlyLowerOnes(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := make(map[string]bool)
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && file != root {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		pkg := path.Dir(filepath.ToSlash(rel))
		seen[pkg] = true
		checkFile(t, file, pkg)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range height {
		if !seen[pkg] {
			t.Errorf("%s is in the table and not in the tree", pkg)
		}
	}
}

func checkFile(t *testing.T, file, pkg string) {
	own, known := height[pkg]
	if !known {
		t.Errorf("%s is not in the table: say how high it stands", pkg)
		return
	}
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	test := strings.HasSuffix(file, "_test.go")
	for _, spec := range parsed.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		target, ours := strings.CutPrefix(imported, module)
		switch {
		case !ours, test && (target == "internal/testenv" || target == pkg):
		case !known || height[target] >= own && !test:
			t.Errorf("%s (height %d) imports %s (height %d)", file, own, target, height[target])
		case target == "internal/testenv":
			t.Errorf("%s imports internal/testenv, which is for tests only", file)
		}
	}
}
