package bizkey

import (
	"slices"
	"strings"
	"testing"
)

// B27: these values stand in databases. If one changes, the prefix needs a new version and the rows a migration.
func TestKeysNeverChange(t *testing.T) {
	for want, got := range map[string]string{
		"o1:a:1001:7:spring:1":   Build("o1:a", "1001", "7", "spring", "1"),
		"o1:k:1001:order~3a2026": Build("o1:k", "1001", "order:2026"),
		"x1:~:~7e:~c3~a9":        Build("x1", "", "~", "é"),
		"o1:k:~hNMf1L8_Ao6tRJ5AwrJq_WDMv6lq_F7m5_TeeCbdvxLg": Build("o1:k", "1001", strings.Repeat("k", 255)),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// B14: maximal fields still fit, and two that differ in their last character only stay two.
func TestLongKeysAreHashedAndStayApart(t *testing.T) {
	long := strings.Repeat("k", 254)
	a, b := Build("o1:k", "9223372036854775807", long+"a"), Build("o1:k", "9223372036854775807", long+"b")
	if a == b || len(a) > MaxLength || len(b) > MaxLength {
		t.Errorf("%q and %q", a, b)
	}
	edge := Build("p1", strings.Repeat("x", MaxLength-3))
	if len(edge) != MaxLength || strings.Contains(edge, "~h") {
		t.Errorf("a key of exactly %d bytes should be readable: %q", MaxLength, edge)
	}
}

// B23: whatever the fields hold, different tuples give different keys.
func FuzzDifferentFieldsGiveDifferentKeys(f *testing.F) {
	f.Add("1", "23_4", "1_23", "4")
	f.Add("1", "2:3", "1:2", "3")
	f.Add("", "a", "a", "")
	f.Add("~3a", "", ":", "")
	f.Add("{}", "x", "{", "}x")
	f.Fuzz(func(t *testing.T, a1, a2, b1, b2 string) {
		same := slices.Equal([]string{a1, a2}, []string{b1, b2})
		if got := Build("p1", a1, a2) == Build("p1", b1, b2); got != same {
			t.Errorf("(%q, %q) and (%q, %q): equal keys is %v", a1, a2, b1, b2, got)
		}
		if k := Build("p1", a1, a2); len(k) > MaxLength {
			t.Errorf("%q has %d bytes", k, len(k))
		}
		if Build("p1", a1+a2) == Build("p1", a1, a2) {
			t.Errorf("one field and two run into each other: %q %q", a1, a2)
		}
	})
}
