package grant

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/oncepay/internal/testenv"
)

func (f *fixture) makeCode(user int64, key, template string) answer {
	return do(f.router, user, http.MethodPost, "/v1/coupon-codes", key, fmt.Sprintf(`{"template":%q}`, template))
}

// S0 §9.4: making a code is new each time; only the key tells a retry. The operator's deed is recorded with it.
func TestEachKeyMakesOneCode(t *testing.T) {
	f := newFixture(t)
	codes := make([]string, 40)
	testenv.Together(len(codes), func(i int) {
		a := f.makeCode(9, fmt.Sprint("K", i%2), "x")
		if codes[i] = a.body.Code; a.Code != http.StatusCreated || a.body.Template != "x" {
			t.Errorf("%d %s", a.Code, a.Body)
		}
	})
	slices.Sort(codes)
	if codes = slices.Compact(codes); len(codes) != 2 {
		t.Errorf("codes %v, want one for each key", codes)
	}
	if n := f.count("SELECT COUNT(*) FROM t_coupon_code WHERE template = 'x' AND created_by = 9"); n != 2 {
		t.Errorf("%d rows", n)
	}
	if n := f.count(`SELECT COUNT(*) FROM t_audit a JOIN t_coupon_code c ON a.subject = CONCAT('coupon_code:', c.id)
		WHERE a.actor_id = 9 AND a.action = 'coupon_code.create' AND a.detail = 'template x'`); n != 2 {
		t.Errorf("%d records of what was done, want 2", n)
	}
}

func TestCodesThatClashAreMadeAgain(t *testing.T) {
	f := newFixture(t)
	codes := []string{"A", "A", "B"}
	f.NewCode = func() string { return codes[f.number()-1] }
	if a := f.makeCode(9, "K1", "x"); a.body.Code != "A" || a.Body.String() != `{"code":"A","template":"x","created_at":"2026-05-01T12:00:00Z"}`+"\n" {
		t.Errorf("%s", a.Body)
	}
	if a := f.makeCode(9, "K2", "x"); a.body.Code != "B" {
		t.Errorf("%s", a.Body)
	}
	if codes, records := f.count("SELECT COUNT(*) FROM t_coupon_code"), f.count("SELECT COUNT(*) FROM t_audit"); codes != 2 || records != 2 {
		t.Errorf("%d codes, %d records", codes, records)
	}
}

func TestCodeRequestsAreRefused(t *testing.T) {
	f := newFixture(t)
	f.makeCode(9, "", "x").want(t, http.StatusBadRequest, "idempotency_key_required")
	f.makeCode(9, "K1", "").want(t, http.StatusBadRequest, "template_invalid")
	f.makeCode(9, "K1", strings.Repeat("x", 65)).want(t, http.StatusBadRequest, "template_invalid")
	f.makeCode(9, "K1", "x").want(t, http.StatusCreated, "")
	f.makeCode(9, "K1", "y").want(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
}

func TestCodesAreSixteenReadableCharacters(t *testing.T) {
	form := regexp.MustCompile(`^[0-9A-HJKMNP-TV-Z]{16}$`)
	seen := make(map[string]bool)
	for range 1000 {
		c := NewCode()
		if !form.MatchString(c) || seen[c] {
			t.Fatalf("%q, seen before: %v", c, seen[c])
		}
		seen[c] = true
	}
}
