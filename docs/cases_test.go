package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// cases are the faults that systems of this kind are known to have, by the ids that the tests carry. Ids are not consecutive.
var cases = []struct{ id, fault string }{
	{"B01", "Same key from two users"},
	{"B03", "Key bound to route template, not concrete path"},
	{"B04", "Changed request under the same key wedges the customer"},
	{"B06", "Fingerprint and decoder read different values"},
	{"B07", "Passing 5xx pinned to the key"},
	{"B08", "Refusal stays although its cause has gone"},
	{"B10", "Key retention ends before the retries do"},
	{"B11", "Client makes a new key for the same purchase"},
	{"B12", "Outbound number made inside the retry loop"},
	{"B14", "Composed key longer than its column"},
	{"B16", "Orphaned claim answers 409 for days"},
	{"B17", "Presumed-dead worker wakes up after takeover"},
	{"B19", "Answer stored outside the business transaction"},
	{"B20", "Same message twice in one batch"},
	{"B21", "Ids that are equal only under a loose collation"},
	{"B23", "Key parts that run into each other"},
	{"B24", "Token use not atomic, or key without expiry"},
	{"B25", "Token dead after a failure the user can repair"},
	{"B27", "A release changes the key rule"},
	{"B28", "Renewal stalls, a second holder enters"},
	{"B29", "Holder loses only Redis and writes on"},
	{"B30", "Old owner damages the new owner's lock"},
	{"B32", "Waiting for a lock without a bound"},
	{"B33", "Lock released before the commit"},
	{"B35", "Acquire returns after its lease ran out"},
	{"B36", "Reply goes to the wrong request"},
	{"B38", "Multi-key script breaks on a cluster"},
	{"B39", "Client retry counts one command twice"},
	{"B40", "Eviction removes locks and tokens"},
	{"B41", "Redis down: open or closed by accident"},
	{"B43", "Upserts deadlock on gap locks"},
	{"B44", "Locking a row that is not there"},
	{"B45", "Duplicate reported, but the re-read finds nothing"},
	{"B47", "Statements after a deadlock are stored singly"},
	{"B48", "INSERT IGNORE hides real errors"},
	{"B49", "Zero affected rows misread"},
	{"B51", "Dedup mark apart from the business write"},
	{"B52", "Duplicate check on a stale read"},
	{"B54", "Fractional seconds rounded up"},
	{"B55", "Connection settings differ from the DSN"},
	{"B56", "Driver repeats a write after a cut"},
	{"B58", "Statement slips out after a cancelled rollback"},
	{"B59", "One cause, many error values"},
	{"B61", "Client-side interpolation and character sets"},
	{"B62", "HTTP client resends a POST by itself"},
	{"B63", "Timeout answered, handler goes on and commits"},
	{"B64", "Panics and bad query values"},
	{"B66", "Body touched before the signature check"},
	{"B67", "Gateway sends one POST to two instances"},
	{"B68", "Signature times from the future"},
	{"B70", "Freshness judged when worked on, not on arrival"},
	{"B73", "Acknowledgement not in the channel's form"},
	{"B76", "Amount or currency not compared"},
	{"B77", "Right signature, wrong merchant or order"},
	{"B79", "Minor units and floats"},
	{"B80", "State checked before the lock"},
	{"B81", "Loser of a race compensates the winner's order"},
	{"B82", "Loser of a race answers the channel with an error"},
	{"B84", "Dedup mark survives a failed handler"},
	{"B85", "Older event overwrites the newer"},
	{"B87", "Late success revives an ended order"},
	{"B89", "Refund or close arrives before the payment"},
	{"B90", "Charged, but the process died before saving"},
	{"B91", "Timeout treated as failure"},
	{"B92", "Concurrent and negative refunds"},
	{"B94", "Pending refund started or finalised again"},
	{"B95", "Refund notice beats our own commit"},
	{"B96", "Refund fails after it was accepted"},
	{"B97", "Refund number kept on retry, new for the next"},
	{"B100", "Partial refunds must sum exactly"},
	{"B102", "Guarded update hit no row and nobody looked"},
	{"B104", "Cancel while the reservation is still running"},
	{"B105", "Stock changed by read, add, write back"},
	{"B107", "Clean-up removes what has money on it"},
	{"B108", "Parallel cancel gives back several times"},
	{"B110", "Follow-up lost behind \"already paid\""},
	{"B111", "Recorded but never queued"},
	{"B113", "Migrations: dirty, half done, started in parallel"},
	{"B114", "Reconciliation by guesswork"},
	{"B72", "Decryption taken for authenticity (WeChat Pay)"},
}

var caseID = regexp.MustCompile(`\bB[0-9]{2,3}\b`)

func TestCasesPageNamesATestForEachCase(t *testing.T) {
	tests := testsByCase(t)
	var table strings.Builder
	table.WriteString("| id | fault | tests |\n| --- | --- | --- |\n")
	for _, c := range cases {
		found := tests[c.id]
		if len(found) == 0 {
			t.Errorf("no test carries %s (%s)", c.id, c.fault)
		}
		slices.Sort(found)
		fmt.Fprintf(&table, "| %s | %s | %s |\n", c.id, c.fault, strings.Join(found, "<br>"))
		delete(tests, c.id)
	}
	for id, found := range tests {
		t.Errorf("%v name a case %s, which docs/cases_test.go does not list", found, id)
	}
	generated(t, "cases.md", table.String())
}

// testsByCase finds the case ids in and above every test of the project.
func testsByCase(t *testing.T) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	root := ".."
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, "_test.go") || filepath.Base(file) == "cases_test.go" {
			return err
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, source, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		for _, decl := range parsed.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			begin := f.Pos()
			if f.Doc != nil {
				begin = f.Doc.Pos()
			}
			text := string(source[set.Position(begin).Offset:set.Position(f.End()).Offset])
			ids := caseID.FindAllString(text, -1)
			slices.Sort(ids)
			for _, id := range slices.Compact(ids) {
				found[id] = append(found[id], fmt.Sprintf("`%s` %s", f.Name.Name, filepath.ToSlash(filepath.Dir(rel))))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
