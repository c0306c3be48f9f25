package grant

import (
	"math"
	"strings"
	"testing"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/bizkey"
	"example.com/oncepay/internal/idemkey"
)

func keyed(user int64, value string) string {
	return redemptionNo(idemkey.Key{Caller: user, Value: value})
}

// B27: these values stand in databases. Whoever changes one needs a new version prefix and a migration.
func TestGoldenKeys(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{activityGrantKey(1001, "spring"), "g1:a:1001:spring:1"},
		{activityGrantKey(math.MaxInt64, strings.Repeat("x", 64)), "g1:a:~hB7bS0p06v0LpYrB_CqEbU_NMM-fRbMDwxpDA11WT9Bk"},
		{keyed(1001, "K1-0123456789-abcdef"), "pr1:1001:K1-0123456789-abcdef"},
		{keyed(1001, "K1:0123456789-abcdef"), "pr1:1001:K1~3a0123456789-abcdef"},
		{keyed(math.MaxInt64, strings.Repeat("k", 255)), "pr1:~h7G6W76h_XrAG1RRNrGjnw6P0naYhBpimY5sOus5SK90"},
		{redemptionGrantKey("pr1:1001:K1-0123456789-abcdef"), "g1:r:pr1~3a1001~3aK1-0123456789-abcdef"},
		{redemptionGrantKey(keyed(math.MaxInt64, strings.Repeat("k", 255))), "g1:r:pr1~3a~7eh7G6W76h_XrAG1RRNrGjnw6P0naYhBpimY5sOus5SK90"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// B14: with parts of maximal length every key fits its column (64), and two that differ in their last character stay two.
func TestTheLongestKeysFitAndStayApart(t *testing.T) {
	for name, build := range map[string]func(last string) string{
		"activity":   func(last string) string { return activityGrantKey(math.MaxInt64, strings.Repeat("x", 63)+last) },
		"redemption": func(last string) string { return keyed(math.MaxInt64, strings.Repeat("x", 254)+last) },
		"bought": func(last string) string {
			return redemptionGrantKey(keyed(math.MaxInt64, strings.Repeat("x", 254)+last))
		},
	} {
		a, b := build("a"), build("b")
		if a == b || len(a) > bizkey.MaxLength || len(b) > bizkey.MaxLength {
			t.Errorf("%s: %q and %q", name, a, b)
		}
	}
}

// B23: parts that could run into each other do not, and no coupon of an activity has the key of a bought one.
func FuzzDifferentCausesHaveDifferentKeys(f *testing.F) {
	f.Add(int64(1), "23_4", int64(123), "_4")
	f.Add(int64(1), "2:3", int64(12), "3")
	f.Add(int64(1), "", int64(1), "~")
	f.Add(int64(1), "{}", int64(1), "~7b~7d")
	f.Fuzz(func(t *testing.T, user1 int64, part1 string, user2 int64, part2 string) {
		same := user1 == user2 && part1 == part2
		if (activityGrantKey(user1, part1) == activityGrantKey(user2, part2)) != same || (keyed(user1, part1) == keyed(user2, part2)) != same {
			t.Errorf("%d %q and %d %q: %s, %s", user1, part1, user2, part2, activityGrantKey(user1, part1), keyed(user1, part1))
		}
		if (redemptionGrantKey(part1) == redemptionGrantKey(part2)) != (part1 == part2) || redemptionGrantKey(part1) == activityGrantKey(user2, part2) {
			t.Errorf("%q and %q: %s", part1, part2, redemptionGrantKey(part1))
		}
	})
}

func TestTemplatesHaveOneForm(t *testing.T) {
	for s, ok := range map[string]bool{
		"a": true, "aZ09_-": true, strings.Repeat("x", 64): true, "": false, strings.Repeat("x", 65): false, "a ": false, "a.b": false, "é": false, "Ａ": false,
	} {
		if err := checkTemplate(s); (err == nil) != ok || !ok && !apperr.Is(err, "template_invalid") {
			t.Errorf("%q: %v", s, err)
		}
	}
}
