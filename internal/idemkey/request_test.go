package idemkey

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
)

const goodKey = "K1-0123456789-abcdef"

func request(method, target string, header ...string) *http.Request {
	r := httptest.NewRequestWithContext(auth.With(context.Background(), auth.Caller{UserID: 1001}), method, target, io.NopCloser(strings.NewReader("")))
	for _, h := range header {
		r.Header.Add(Header, h)
	}
	return r
}

func printOf(t *testing.T, method, target, body string) string {
	t.Helper()
	f, err := fingerprint(request(method, target), []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// B27: these values stand in databases. If one changes, "v1" must become "v2" and Find must know both for a retention's time.
func TestFingerprintsNeverChange(t *testing.T) {
	for want, got := range map[string]string{
		"v1:b91719d760a8acbfee0154fff3dc0586851b984c04525665be0db916090d270e": printOf(t, "POST", "/v1/orders", `{"sku_id":1,"quantity":2}`),
		"v1:00ba7a88890ea949052ee1944c844f0a5041745798a55a1c287c2bfc78a91afc": printOf(t, "POST", "/v1/orders/0190/cancel", ""),
		"v1:2268453c7edd0c5d61a0e0235825a43cece2f60d4c3fc4cc91c09cc777a4f1b5": printOf(t, "POST", "/v1/ops/skus/7/stock-movements?b=2&a=1&a=0", `{"reason":"é \"x\"","delta":-9007199254740993,"list":[1.50,true,null]}`),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestTheSameRequestInOtherClothesIsTheSame(t *testing.T) {
	want := printOf(t, "POST", "/v1/orders?a=1&b=2", `{"quantity":2,"sku_id":1,"x":{"a":[1,2],"b":"é\""}}`)
	for name, got := range map[string]string{
		"key order":      printOf(t, "POST", "/v1/orders?a=1&b=2", `{"sku_id":1,"x":{"b":"é\"","a":[1,2]},"quantity":2}`),
		"white space":    printOf(t, "POST", "/v1/orders?a=1&b=2", " {\n\t\"quantity\" : 2 , \"sku_id\":1,\"x\": { \"a\":[ 1 , 2 ],\"b\":\"é\\\"\"} }\r\n"),
		"string escapes": printOf(t, "POST", "/v1/orders?a=1&b=2", `{"\u0071uantity":2,"sku_id":1,"x":{"a":[1,2],"b":"\u00e9\u0022"}}`),
		"query order":    printOf(t, "POST", "/v1/orders?b=2&a=1", `{"quantity":2,"sku_id":1,"x":{"a":[1,2],"b":"é\""}}`),
		"query escapes":  printOf(t, "POST", "/v1/orders?%61=1&b=%32", `{"quantity":2,"sku_id":1,"x":{"a":[1,2],"b":"é\""}}`),
	} {
		if got != want {
			t.Errorf("%s makes another request of it", name)
		}
	}
	if printOf(t, "POST", "/", "") != printOf(t, "POST", "/", " \n") {
		t.Error("no body and white space differ")
	}
}

// B03: the concrete path, the query, the method and every digit of the body count.
func TestDifferentRequestsDiffer(t *testing.T) {
	seen := make(map[string]string)
	for _, c := range [][3]string{
		{"POST", "/v1/orders", `{"n":1}`},
		{"PUT", "/v1/orders", `{"n":1}`},
		{"POST", "/v1/orders/1", `{"n":1}`},
		{"POST", "/v1/orders/2", `{"n":1}`},
		{"POST", "/v1/orders%2F2", `{"n":1}`},
		{"POST", "/v1/orders?a=1", `{"n":1}`},
		{"POST", "/v1/orders?a=2", `{"n":1}`},
		{"POST", "/v1/orders?a=1&a=1", `{"n":1}`},
		{"POST", "/v1/orders?a=1&a=2", `{"n":1}`},
		{"POST", "/v1/orders?a=2&a=1", `{"n":1}`},
		{"POST", "/v1/orders?a=%zz", `{"n":1}`},
		{"POST", "/v1/orders?a;b", `{"n":1}`},
		{"POST", "/v1/orders", `{"n":2}`},
		{"POST", "/v1/orders", `{"n":"1"}`},
		{"POST", "/v1/orders", `{"n":1.0}`},
		{"POST", "/v1/orders", `{"n":1e0}`},
		{"POST", "/v1/orders", `{"n":-0}`},
		{"POST", "/v1/orders", `{"n":0}`},
		{"POST", "/v1/orders", `{"n":9007199254740992}`},
		{"POST", "/v1/orders", `{"n":9007199254740993}`},
		{"POST", "/v1/orders", `{"n":0.1000000000000000055}`},
		{"POST", "/v1/orders", `{"n":0.1}`},
		{"POST", "/v1/orders", `{"N":1}`},
		{"POST", "/v1/orders", `{"n":[1,2]}`},
		{"POST", "/v1/orders", `{"n":[2,1]}`},
		{"POST", "/v1/orders", `{"n":null}`},
		{"POST", "/v1/orders", `{}`},
		{"POST", "/v1/orders", ``},
		{"POST", "/v1/orders", `{"n":"é"}`},           // precomposed
		{"POST", "/v1/orders", "{\"n\":\"e\u0301\"}"}, // e and a combining accent
	} {
		f := printOf(t, c[0], c[1], c[2])
		if before, ok := seen[f]; ok {
			t.Errorf("%v and %s have one fingerprint", c, before)
		}
		seen[f] = strings.Join(c[:], " ")
	}
}

func TestABodyThatTwoParsersReadDifferentlyHasNoFingerprintOf(t *testing.T) {
	for _, body := range []string{`{"a":1,"a":2}`, `{"a":1}{"a":1}`, `{`, "{\"a\":\"\xff\"}", "\ufeff{}"} {
		if f, err := fingerprint(request("POST", "/"), []byte(body)); !apperr.Is(err, "body_invalid") {
			t.Errorf("%q: %s, %v", body, f, err)
		}
	}
}

func TestTheHeaderHasOneForm(t *testing.T) {
	long := strings.Repeat("k", 255)
	for name, c := range map[string]struct {
		lines []string
		want  string // "": refused
	}{
		"bare":             {[]string{goodKey}, goodKey},
		"quoted":           {[]string{`"` + goodKey + `"`}, goodKey},
		"whole alphabet":   {[]string{"AZaz09_.:-AZaz09_.:-"}, "AZaz09_.:-AZaz09_.:-"},
		"shortest":         {[]string{long[:20]}, long[:20]},
		"too short":        {[]string{long[:19]}, ""},
		"longest":          {[]string{long}, long},
		"too long":         {[]string{long + "k"}, ""},
		"quoted, longest":  {[]string{`"` + long + `"`}, long},
		"quoted, short":    {[]string{`"` + long[:19] + `"`}, ""},
		"empty":            {[]string{""}, ""},
		"empty quotes":     {[]string{`""`}, ""},
		"one quote":        {[]string{`"`}, ""},
		"quote in front":   {[]string{`"` + goodKey}, ""},
		"quote behind":     {[]string{goodKey + `"`}, ""},
		"two pairs":        {[]string{`""` + goodKey + `""`}, ""},
		"single quotes":    {[]string{"'" + goodKey + "'"}, ""},
		"blank inside":     {[]string{"K1 0123456789-abcdef"}, ""},
		"blank behind":     {[]string{goodKey + " "}, ""},
		"comma list":       {[]string{goodKey + "," + goodKey}, ""},
		"slash":            {[]string{"K1/0123456789-abcdef"}, ""},
		"accent":           {[]string{"café-0123456789-abcdef"}, ""},
		"full-width":       {[]string{"Ａ-0123456789-abcdefgh"}, ""},
		"NUL":              {[]string{"K1-0123456789-abcde\x00"}, ""},
		"new line":         {[]string{"K1-0123456789-abcde\n"}, ""},
		"no UTF-8":         {[]string{"K1-0123456789-abcde\xff"}, ""},
		"tilde":            {[]string{"K1~0123456789-abcdef"}, ""},
		"two lines":        {[]string{goodKey, goodKey}, ""},
		"two lines, empty": {[]string{goodKey, ""}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			k, err := Required(request("POST", "/", c.lines...), "op", nil)
			if c.want == "" && (!apperr.Is(err, "idempotency_key_invalid") || k.Sent()) {
				t.Errorf("%q: %+v, %v", c.lines, k, err)
			}
			if c.want != "" && (err != nil || k.Value != c.want || k.Caller != 1001 || k.Operation != "op" || !strings.HasPrefix(k.Fingerprint, "v1:")) {
				t.Errorf("%q: %+v, %v", c.lines, k, err)
			}
		})
	}
}

func TestAMissingKeyIsRefusedOnlyWhereOneIsRequired(t *testing.T) {
	if k, err := Optional(request("POST", "/"), "op", nil); err != nil || k.Sent() {
		t.Errorf("%+v, %v", k, err)
	}
	_, err := Required(request("POST", "/"), "op", nil)
	if e, ok := apperr.As(err); !ok || e.Code != "idempotency_key_required" || e.Kind != apperr.Invalid || e.Layer != apperr.LayerIdempotencyKey {
		t.Errorf("got %v", err)
	}
	if _, err := Optional(request("POST", "/", ""), "op", nil); !apperr.Is(err, "idempotency_key_invalid") {
		t.Errorf("an empty header: %v", err)
	}
	if _, err := Optional(request("POST", "/", goodKey), "op", []byte("{")); !apperr.Is(err, "body_invalid") {
		t.Errorf("a body that is no JSON: %v", err)
	}
}
