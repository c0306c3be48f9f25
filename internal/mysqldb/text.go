package mysqldb

import "strings"

// TextWidth is the width, in characters, of the columns that keep what went wrong and what was done about it.
const TextWidth = 1024

// Cut shortens a text for people to TextWidth and makes it valid UTF-8: it may quote what somebody else said, and must not keep its
// row from being written.
func Cut(text string) string {
	runes := []rune(strings.ToValidUTF8(text, "?"))
	return string(runes[:min(len(runes), TextWidth)])
}
