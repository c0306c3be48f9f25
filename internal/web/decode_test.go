package web

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/money"
)

type purchase struct {
	SKUID  int64        `json:"sku_id"`
	Amount money.Amount `json:"amount"`
	Note   string       `json:"note"`
	Coupon *struct {
		Limit int64 `json:"limit"`
	} `json:"coupon"`
}

func post(body, contentType string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return r
}

// B06: whatever two parsers could read differently is refused.
func TestAmbiguousBodiesAreRefused(t *testing.T) {
	for name, body := range map[string]string{
		"repeated field":            `{"amount":100,"amount":1}`,
		"repeated by escape":        `{"amount":100,"\u0061mount":1}`,
		"differs in case, both":     `{"amount":100,"AMOUNT":1}`,
		"differs in case, alone":    `{"Amount":100}`,
		"folds equal (U+017F)":      `{"ſku_id":1,"sku_id":1}`,
		"folds equal, alone":        `{"ſku_id":1}`,
		"nested repeat":             `{"coupon":{"limit":1,"limit":2}}`,
		"nested case":               `{"coupon":{"limit":1,"Limit":2}}`,
		"nested unknown":            `{"coupon":{"limit":1,"discount":2}}`,
		"unknown field":             `{"sku_id":1,"price":1}`,
		"repeated unknown":          `{"x":1,"x":2}`,
		"second document":           `{"sku_id":1}{"sku_id":2}`,
		"second document, new line": "{\"sku_id\":1}\n{\"sku_id\":2}",
		"trailing garbage":          `{"sku_id":1}x`,
		"trailing comma":            `{"sku_id":1,}`,
		"comment":                   `{"sku_id":1/*one*/}`,
		"byte order mark":           "\ufeff{\"sku_id\":1}",
		"invalid UTF-8":             "{\"note\":\"\xbf\x27\"}",
		"lone surrogate":            `{"note":"\ud800"}`,
		"raw control character":     "{\"note\":\"a\x00b\"}",
		"empty":                     ``,
		"white space":               " \n",
		"null":                      `null`,
		"array":                     `[{"sku_id":1}]`,
		"string":                    `"sku_id"`,
		"string for number":         `{"sku_id":"1"}`,
		"number for string":         `{"note":1}`,
		"object for number":         `{"sku_id":{}}`,
		"bool for number":           `{"sku_id":true}`,
		"cut off":                   `{"sku_id":1`,
		"single quotes":             `{'sku_id':1}`,
	} {
		t.Run(name, func(t *testing.T) { wantInvalid(t, body) })
	}
}

// B79: an integer is written as one; nothing is rounded and nothing overflows.
func TestNumbersThatAreNoWholeNumbersAreRefused(t *testing.T) {
	for _, n := range []string{
		`"1"`, `1.0`, `1.5`, `19.99`, `1e2`, `1E0`, `-0`, `01`, `+1`, `0x1`, `１`, `9223372036854775808`, `-9223372036854775809`,
		`1e400`, `NaN`, `Infinity`, `null`, `[]`,
	} {
		t.Run(n, func(t *testing.T) { wantInvalid(t, `{"amount":`+n+`}`) })
	}
	for _, n := range []string{`1.0`, `1.5`, `1e2`, `9223372036854775808`, `"1"`} {
		t.Run("plain integer "+n, func(t *testing.T) { wantInvalid(t, `{"sku_id":`+n+`}`) })
	}
}

func wantInvalid(t *testing.T, body string) {
	t.Helper()
	var p purchase
	_, err := DecodeJSON(post(body, "application/json"), &p)
	e, ok := apperr.As(err)
	if !ok || e.Kind != apperr.Invalid || e.Code != "body_invalid" {
		t.Fatalf("%s: got %v, %+v", body, err, p)
	}
	if strings.Contains(e.Detail, "int64") || strings.Contains(e.Detail, "web.") || strings.Contains(e.Detail, "json:") {
		t.Errorf("the detail speaks of our internals: %s", e.Detail)
	}
}

func TestAGoodBodyIsReadExactlyAndItsBytesAreReturned(t *testing.T) {
	body := " {\"amount\": 9007199254740993, \"sku_id\":1,\"note\":\"\\u00e9😀'\\\\\" ,\"coupon\":{\"limit\":9223372036854775807}}\n"
	var p purchase
	got, err := DecodeJSON(post(body, "application/json; charset=UTF-8"), &p)
	if err != nil || string(got) != body {
		t.Fatalf("%q, %v", got, err)
	}
	if p.Amount != 9007199254740993 || p.SKUID != 1 || p.Note != `é😀'\` || p.Coupon.Limit != 9223372036854775807 {
		t.Errorf("%+v", p)
	}
}

func TestTheDetailNamesTheFieldAtFault(t *testing.T) {
	for body, want := range map[string]string{
		`{"amount":1,"amount":2}`:           `"/amount" stands there twice`,
		`{"coupon":{"x":1}}`:                `"/coupon/x" is not known`,
		`{"coupon":{"limit":"1"}}`:          `"/coupon/limit" has the wrong type`,
		`{"sku_id":99999999999999999999}`:   `"/sku_id" has the wrong type or is out of range`,
		`{"sku_id":1} {"sku_id":1}`:         `error at byte 13`,
		`[]`:                                `one JSON object`,
		`null`:                              `one JSON object`,
		`{"amount":"19.99"}`:                `"/amount" has the wrong type`,
		"{\"note\":\"\xff\"}":               `not one JSON document`,
		`{"sku_id":1,"quantity_of_sku":12}`: `"/quantity_of_sku" is not known`,
	} {
		_, err := DecodeJSON(post(body, "application/json"), &purchase{})
		if e, ok := apperr.As(err); !ok || !strings.Contains(e.Detail, want) {
			t.Errorf("%s: %v; want %s", body, err, want)
		}
	}
}

func TestTheBodyLimitIsExact(t *testing.T) {
	for size, want := range map[int]string{MaxBody - 1: "", MaxBody: "", MaxBody + 1: "body_too_large", 3 * MaxBody: "body_too_large"} {
		body := `{"note":"` + strings.Repeat("x", size-len(`{"note":""}`)) + `"}`
		_, err := DecodeJSON(post(body, ""), &purchase{})
		if want == "" && err != nil || want != "" && !apperr.Is(err, want) {
			t.Errorf("%d bytes: %v, want %q", size, err, want)
		}
		if e, ok := apperr.As(err); ok && Status(e.Kind) != http.StatusRequestEntityTooLarge {
			t.Errorf("%d bytes: status %d", size, Status(e.Kind))
		}
	}
}

// A body that stops before its announced end is not taken for a shorter one, though what came is a whole document.
func TestABodyThatBreaksOffIsRefused(t *testing.T) {
	for name, raw := range map[string]string{
		"chunk missing":   "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n{\"sku_id\":1}\r\n",
		"chunk cut":       "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{\"sku_id\":1}",
		"length not met":  "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"sku_id\":1}",
		"nothing arrived": "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := DecodeJSON(r, &purchase{}); !apperr.Is(err, "body_incomplete") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestOnlyJSONInUTF8IsRead(t *testing.T) {
	for contentType, ok := range map[string]bool{
		"":                                  true,
		"application/json":                  true,
		"Application/JSON":                  true,
		"application/json;charset=utf-8":    true,
		`application/json; charset="UTF-8"`: true,
		"application/json; charset=gbk":     false,
		"application/json; charset=":        false,
		"application/json; charset=utf-16":  false,
		"text/json":                         false,
		"text/plain":                        false,
		"application/x-www-form-urlencoded": false,
		"multipart/form-data; boundary=x":   false,
		"application/problem+json":          false,
		"application/json, text/plain":      false,
		"json":                              false,
		";":                                 false,
	} {
		_, err := DecodeJSON(post(`{"sku_id":1}`, contentType), &purchase{})
		if ok && err != nil || !ok && !apperr.Is(err, "unsupported_media_type") {
			t.Errorf("%q: %v, want accepted %v", contentType, err, ok)
		}
		if e, is := apperr.As(err); is && Status(e.Kind) != http.StatusUnsupportedMediaType {
			t.Errorf("%q: status %d", contentType, Status(e.Kind))
		}
	}
}

func TestAnActionWithoutBodyTakesNoneOrAnEmptyObject(t *testing.T) {
	for body, ok := range map[string]bool{
		"": true, " \r\n": true, "{}": true, " { } ": true,
		`{"a":1}`: false, "[]": false, "null": false, "x": false, "{}{}": false, "\ufeff{}": false,
	} {
		got, err := NoBody(post(body, ""))
		if ok && err != nil || !ok && !apperr.Is(err, "body_invalid") {
			t.Errorf("%q: %v, want accepted %v", body, err, ok)
		}
		if ok && strings.TrimSpace(body) == "" && len(got) != 0 {
			t.Errorf("%q: returns %q", body, got)
		}
	}
	if _, err := NoBody(post("{}", "text/plain")); !apperr.Is(err, "unsupported_media_type") {
		t.Errorf("text/plain: %v", err)
	}
	if _, err := NoBody(post(strings.Repeat(" ", MaxBody+1), "")); !apperr.Is(err, "body_too_large") {
		t.Errorf("too large: %v", err)
	}
	r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader("{}"), brokenReader{}))
	if _, err := NoBody(r); !apperr.Is(err, "body_incomplete") {
		t.Errorf("broken off: %v", err)
	}
}

func TestABodyThatMayBeMissingIsStrictWhenItIsThere(t *testing.T) {
	for body, want := range map[string]string{"": "before", " \n": "before", "{}": "before", `{"reason":"x"}`: "x"} {
		got := struct {
			Reason string `json:"reason"`
		}{"before"}
		if _, err := DecodeOptional(post(body, ""), &got); err != nil || got.Reason != want {
			t.Errorf("%q: %+v, %v; want %q", body, got, err, want)
		}
		for _, faulty := range []string{`{"reason":"a","reason":"b"}`, `{"Reason":"a"}`, `{"other":1}`, "null", "{}{}"} {
			if _, err := DecodeOptional(post(faulty, ""), &got); !apperr.Is(err, "body_invalid") {
				t.Errorf("%q: %v", faulty, err)
			}
		}
	}
	if _, err := DecodeOptional(post("{}", "text/plain"), &struct{}{}); !apperr.Is(err, "unsupported_media_type") {
		t.Errorf("text/plain: %v", err)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
