package idemkey

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/auth"
)

// Header is the name of the request header.
const Header = "Idempotency-Key"

const (
	minLength = 20  // shorter keys are counters and time stamps, which two clients make alike (rocket-rides-atomic)
	maxLength = 255 // Stripe's limit, and the column's
)

// Key is one Idempotency-Key bound to one caller and one request. The zero Key stands for "none was sent".
type Key struct {
	Caller      int64
	Value       string
	Operation   string // e.g. "order.create", for metrics and people
	Fingerprint string // what the request was; see fingerprint

	owner   string        // this run; only it may finish what it began
	keep    time.Duration // how long the answer can be replayed; 0: the store's retention
	derived time.Duration // the window of a key that was derived; 0: it was sent
}

// MoneyRetention is how long answers of payments and refunds can be replayed: disputes and reconciliations look back a month
// (Stripe keeps the keys of its v2 API as long).
const MoneyRetention = 720 * time.Hour

// ForMoney returns the key with the retention of payments and refunds.
func (k Key) ForMoney() Key {
	k.keep = MoneyRetention
	return k
}

// Sent reports whether there is a key.
func (k Key) Sent() bool { return k.Value != "" }

// Required reads the key of a request whose action demands one. body is the bytes that were decoded.
func Required(r *http.Request, operation string, body []byte) (Key, error) {
	k, err := Optional(r, operation, body)
	if err == nil && !k.Sent() {
		return Key{}, apperr.New(apperr.Invalid, "idempotency_key_required",
			"This action must carry an %s header: %d to %d characters, new for each new action, the same for each retry.", Header, minLength, maxLength).
			At(apperr.LayerIdempotencyKey)
	}
	return k, err
}

// Optional reads the key of a request that may have one.
func Optional(r *http.Request, operation string, body []byte) (Key, error) {
	lines := r.Header.Values(Header)
	if len(lines) == 0 {
		return Key{}, nil
	}
	value, err := ParseValue(lines)
	if err != nil {
		return Key{}, err
	}
	print, err := fingerprint(r, body)
	if err != nil {
		return Key{}, err
	}
	return Key{
		Caller: auth.From(r.Context()).UserID, Value: value, Operation: operation, Fingerprint: print,
		owner: rand.Text(), derived: derivedFor(r.Context()),
	}, nil
}

// ParseValue checks the header's lines: one line, bare or in one pair of double quotes (the draft's form), 20 to 255 of
// [A-Za-z0-9_.:-]. Case matters.
func ParseValue(lines []string) (string, error) {
	invalid := func(format string, args ...any) error {
		return apperr.New(apperr.Invalid, "idempotency_key_invalid", format, args...).At(apperr.LayerIdempotencyKey)
	}
	if len(lines) != 1 {
		return "", invalid("%s was sent %d times; send it once.", Header, len(lines))
	}
	value := lines[0]
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		value = value[1 : len(value)-1]
	}
	if len(value) < minLength || len(value) > maxLength {
		return "", invalid("%s has %d characters; %d to %d are allowed.", Header, len(value), minLength, maxLength)
	}
	if i := strings.IndexFunc(value, func(c rune) bool { return !allowed(c) }); i >= 0 {
		return "", invalid("%s may hold letters, digits and _ . : - only; character %d is something else.", Header, i+1)
	}
	return value, nil
}

func allowed(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_.:-", c)
}

// fingerprint is "v1:" and the SHA-256 of method, concrete path, canonical query and canonical body. The route template
// would not do: the same body under another order's path is another request.
func fingerprint(r *http.Request, body []byte) (string, error) {
	canonical, err := canonicalJSON(body)
	if err != nil {
		return "", err
	}
	query := r.URL.Query().Encode()
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		query = r.URL.RawQuery // Query would drop what it cannot read, and two requests become one
	}
	h := sha256.New()
	// Each part is preceded by its length, so that no two requests run into the same text.
	for _, part := range []string{r.Method, r.URL.EscapedPath(), query, canonical} {
		fmt.Fprintf(h, "%d\n%s\n", len(part), part)
	}
	return "v1:" + hex.EncodeToString(h.Sum(nil)), nil
}

// canonicalJSON sorts object keys and drops white space. Numbers keep their digits: two that differ beyond a float's 53
// bits are different requests.
func canonicalJSON(body []byte) (string, error) {
	if len(strings.TrimSpace(string(body))) == 0 {
		return "", nil
	}
	v := jsontext.Value(append([]byte(nil), body...))
	err := v.Format(jsontext.ReorderRawObjects(true), jsontext.PreserveRawStrings(false),
		jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false), jsontext.Multiline(false))
	if err != nil {
		return "", apperr.New(apperr.Invalid, "body_invalid", "The body is not one JSON document.").Wrap(err)
	}
	return string(v), nil
}
