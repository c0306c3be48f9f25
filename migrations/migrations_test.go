package migrations

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var comment = regexp.MustCompile(`(?m)--.*$|'(?:[^']|'')*'`)

// One statement a file, in pairs, numbered without a gap: a file of two could stop between them, and no down file would
// fit what is there.
func TestMigrationsComeInPairsOfOneStatement(t *testing.T) {
	ups, err := fs.Glob(FS, "*.up.sql")
	if err != nil || len(ups) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	downs, err := fs.Glob(FS, "*.down.sql")
	if err != nil {
		t.Fatal(err)
	}
	for i, up := range ups {
		if !strings.HasPrefix(up, version(i+1)+"_") {
			t.Errorf("%s: number %d should begin with %s", up, i+1, version(i+1))
		}
		if down := strings.Replace(up, ".up.", ".down.", 1); !slices.Contains(downs, down) {
			t.Errorf("%s has no %s", up, down)
		}
	}
	if len(ups) != len(downs) {
		t.Errorf("%d up files, %d down files", len(ups), len(downs))
	}
	for _, name := range append(ups, downs...) {
		text, err := fs.ReadFile(FS, name)
		if err != nil {
			t.Fatal(err)
		}
		code := strings.TrimSpace(comment.ReplaceAllString(string(text), ""))
		if code == "" || strings.Contains(strings.TrimSuffix(code, ";"), ";") {
			t.Errorf("%s does not hold exactly one statement", name)
		}
		for _, verb := range []string{"IF NOT EXISTS", "IF EXISTS"} {
			if strings.Contains(strings.ToUpper(code), verb) {
				t.Errorf("%s says %s, which hides that the schema is not what the version says", name, verb)
			}
		}
	}
}

func version(n int) string {
	digits := []byte("000000")
	for i := len(digits) - 1; n > 0; i, n = i-1, n/10 {
		digits[i] = byte('0' + n%10)
	}
	return string(digits)
}
