// Package bizkey builds the keys that name a business action: for unique indexes, locks and derived numbers. There is one
// builder so that there is one rule; golden tests pin its output, because a changed rule makes every key in the database
// a stranger. A change needs a new version in the prefix and a migration.
package bizkey

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
)

// MaxLength is the width of the columns that hold a built key.
const MaxLength = 64

// Build joins a versioned prefix such as "o1:a" and the fields that make an action this one. Different prefixes and fields
// give different keys: a field's bytes other than [A-Za-z0-9_.-] are written as ~ and two hex digits, an empty field as ~,
// so that the separator ":" is never part of one. A key that fits into MaxLength bytes can be read; a longer one is the
// prefix, "~h" (which no field can begin with) and the SHA-256 of what would have stood there.
func Build(prefix string, fields ...string) string {
	var b strings.Builder
	b.WriteString(prefix)
	for _, f := range fields {
		b.WriteByte(':')
		writeField(&b, f)
	}
	if b.Len() <= MaxLength {
		return b.String()
	}
	sum := sha256.Sum256([]byte(b.String()))
	return prefix + ":~h" + base64.RawURLEncoding.EncodeToString(sum[:])
}

func writeField(b *strings.Builder, f string) {
	if f == "" {
		b.WriteByte('~')
	}
	for i := range len(f) {
		if c := f[i]; plain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(b, "~%02x", c)
		}
	}
}

func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-'
}
