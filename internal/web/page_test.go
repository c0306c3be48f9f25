package web

import (
	"encoding/base64"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"

	"example.com/oncepay/internal/apperr"
)

// B64
func TestBadPagingIsRefused(t *testing.T) {
	raw := base64.RawURLEncoding.EncodeToString
	for query, code := range map[string]string{
		"limit=abc": "limit_invalid", "limit=-5": "limit_invalid", "limit=0": "limit_invalid", "limit=101": "limit_invalid",
		"limit=1e9": "limit_invalid", "limit=1000000000": "limit_invalid", "limit=99999999999999999999": "limit_invalid",
		"limit=": "limit_invalid", "limit=1.5": "limit_invalid", "limit=%20": "limit_invalid", "limit=1&limit=2": "limit_invalid",
		"cursor=": "cursor_invalid", "cursor=abc": "cursor_invalid", "cursor=17": "cursor_invalid", "cursor=%00": "cursor_invalid",
		"cursor=" + raw([]byte("a0")):                   "cursor_invalid",
		"cursor=" + raw([]byte("a-1")):                  "cursor_invalid",
		"cursor=" + raw([]byte("a01")):                  "cursor_invalid",
		"cursor=" + raw([]byte("a+1")):                  "cursor_invalid",
		"cursor=" + raw([]byte("b1")):                   "cursor_invalid",
		"cursor=" + raw([]byte("a1 OR 1=1")):            "cursor_invalid",
		"cursor=" + raw([]byte("a9223372036854775808")): "cursor_invalid",
		"cursor=" + url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("a12"))) + "%3D": "cursor_invalid",
		"cursor=" + encodeCursor(7) + "%0A":                                                   "cursor_invalid",
		"cursor=" + encodeCursor(7) + "&cursor=" + encodeCursor(8):                            "cursor_invalid",
	} {
		_, err := ParsePage(get("/?" + query))
		e, ok := apperr.As(err)
		if !ok || e.Code != code || Status(e.Kind) != http.StatusBadRequest {
			t.Errorf("%s: %v, want %s", query, err, code)
		}
	}
}

func TestGoodPagingIsRead(t *testing.T) {
	for query, want := range map[string]Page{
		"":                          {20, 0},
		"limit=1":                   {1, 0},
		"limit=100":                 {100, 0},
		"cursor=" + encodeCursor(7): {20, 7},
		"limit=3&cursor=" + encodeCursor(math.MaxInt64): {3, math.MaxInt64},
	} {
		if got, err := ParsePage(get("/?" + query)); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", query, got, err, want)
		}
	}
}

// Walking with every page size sees each row once, newest first, and the last page says that it is.
func TestPagesCoverTheListOnce(t *testing.T) {
	const n = 7
	rows := func(p Page) []int64 { // what a store does: newest first, past the cursor, p.Rows() at most
		var ids []int64
		for id := int64(n); id >= 1 && len(ids) < p.Rows(); id-- {
			if p.Before == 0 || id < p.Before {
				ids = append(ids, id)
			}
		}
		return ids
	}
	for limit := 1; limit <= n+1; limit++ {
		var seen []int64
		cursor, pages := "", 0
		for {
			query := url.Values{"limit": {strconv.Itoa(limit)}}
			if cursor != "" {
				query.Set("cursor", cursor)
			}
			p, err := ParsePage(get("/?" + query.Encode()))
			if err != nil {
				t.Fatal(err)
			}
			list := Paged(p, rows(p), func(id int64) int64 { return id })
			seen = append(seen, list.Data...)
			if pages++; list.NextCursor == "" || pages > n {
				break
			}
			cursor = list.NextCursor
		}
		if want := []int64{7, 6, 5, 4, 3, 2, 1}; !slices.Equal(seen, want) || pages != (n+limit-1)/limit {
			t.Errorf("limit %d: %v on %d pages", limit, seen, pages)
		}
	}
}

func TestAnEmptyListIsAnEmptyArray(t *testing.T) {
	a, err := JSON(200, Paged[int64](Page{Limit: 20}, nil, nil))
	if err != nil || string(a.Body) != `{"data":[],"next_cursor":""}`+"\n" {
		t.Errorf("%s, %v", a.Body, err)
	}
}
