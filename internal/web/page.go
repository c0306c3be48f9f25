package web

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"example.com/oncepay/internal/apperr"
)

const (
	defaultLimit = 20
	maxLimit     = 100
)

// Page is one step through a list, newest first.
type Page struct {
	Limit  int
	Before int64 // rows with a smaller id; 0: from the newest
}

// List is how every list is answered.
type List[T any] struct {
	Data       []T    `json:"data"`
	NextCursor string `json:"next_cursor"`
}

// ParsePage reads ?limit= and ?cursor=.
func ParsePage(r *http.Request) (Page, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return Page{}, apperr.New(apperr.Invalid, "limit_invalid", "The query string is malformed; limit is a whole number from 1 to %d.", maxLimit).Wrap(err)
	}
	p := Page{Limit: defaultLimit}
	if q.Has("limit") {
		n, err := strconv.Atoi(q.Get("limit"))
		if err != nil || n < 1 || n > maxLimit || len(q["limit"]) > 1 {
			return Page{}, apperr.New(apperr.Invalid, "limit_invalid", "limit is a whole number from 1 to %d.", maxLimit)
		}
		p.Limit = n
	}
	if q.Has("cursor") {
		before, ok := decodeCursor(q.Get("cursor"))
		if !ok || len(q["cursor"]) > 1 {
			return Page{}, apperr.New(apperr.Invalid, "cursor_invalid", "cursor is not one that this list gave out.")
		}
		p.Before = before
	}
	return p, nil
}

// Rows is how many rows to read: one more than the page holds tells whether there is a next one.
func (p Page) Rows() int { return p.Limit + 1 }

// Paged cuts rows read with p.Rows() to the page and makes the cursor. id gives a row's id.
func Paged[T any](p Page, rows []T, id func(T) int64) List[T] {
	list := List[T]{Data: rows}
	if list.Data == nil {
		list.Data = []T{}
	}
	if len(rows) > p.Limit {
		list.Data = rows[:p.Limit]
		list.NextCursor = encodeCursor(id(list.Data[p.Limit-1]))
	}
	return list
}

// The cursor is opaque so that its meaning may change; "a" is the version of the present one.
func encodeCursor(id int64) string {
	return base64.RawURLEncoding.EncodeToString([]byte("a" + strconv.FormatInt(id, 10)))
}

func decodeCursor(s string) (int64, bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	digits, ok := strings.CutPrefix(string(b), "a")
	if err != nil || !ok {
		return 0, false
	}
	id, err := strconv.ParseInt(digits, 10, 64)
	return id, err == nil && id > 0 && encodeCursor(id) == s
}
