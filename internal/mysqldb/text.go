package mysqldb

import "strings"

// TextWidth is the width, in characters, of the columns that keep what went wrong and what was done about it.
const TextWidth = 1024

// In returns "?, ?, ..." for the values of an IN list, and the values as arguments behind those that come before it in the statement.
// The list must not be empty, which SQL does not allow.
func In[T any](values []T, before ...any) (marks string, args []any) {
	for _, v := range values {
		before = append(before, v)
	}
	return strings.TrimSuffix(strings.Repeat("?, ", len(values)), ", "), before
}

// Cut shortens a text for people to TextWidth and makes it valid UTF-8: it may quote what somebody else said, and must not keep its
// row from being written.
func Cut(text string) string {
	runes := []rune(strings.ToValidUTF8(text, "?"))
	return string(runes[:min(len(runes), TextWidth)])
}
