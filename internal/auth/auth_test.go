package auth

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const secret = "a-secret-of-the-tests-with-32-bytes-or-more"

func now() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// ask sends a request through Require and returns the status, the problem's code and the caller the handler saw.
func ask(authorization ...string) (status int, code string, caller Caller) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for _, a := range authorization {
		r.Header.Add("Authorization", a)
	}
	w := httptest.NewRecorder()
	Require(secret, now)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { caller = From(r.Context()) })).ServeHTTP(w, r)
	var problem struct {
		Code string `json:"code"`
	}
	if w.Code != http.StatusOK && json.Unmarshal(w.Body.Bytes(), &problem) != nil {
		problem.Code = "no problem+json: " + w.Body.String()
	}
	if (w.Code == http.StatusUnauthorized) != (w.Header().Get("WWW-Authenticate") == "Bearer") {
		problem.Code += " (WWW-Authenticate is wrong)"
	}
	return w.Code, problem.Code, caller
}

func sign(t *testing.T, method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	t.Helper()
	raw, err := jwt.NewWithClaims(method, claims).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// with returns good claims with one changed; nil removes it.
func with(name string, value any) jwt.MapClaims {
	c := jwt.MapClaims{"sub": "1001", "exp": now().Add(time.Hour).Unix()}
	if c[name] = value; value == nil {
		delete(c, name)
	}
	return c
}

func TestAGoodTokenNamesItsCaller(t *testing.T) {
	for _, want := range []Caller{{UserID: 1001}, {UserID: 1, Ops: true}, {UserID: 9223372036854775807}} {
		raw, err := Sign(secret, want, now().Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		for _, scheme := range []string{"Bearer ", "bearer ", "BEARER "} { // RFC 9110 §11.1: the scheme has no case
			if status, code, got := ask(scheme + raw); status != http.StatusOK || got != want {
				t.Errorf("%s: %d %s %+v, want %+v", scheme, status, code, got, want)
			}
		}
	}
}

func TestEveryOtherTokenIsRefused(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	hs256 := func(c jwt.MapClaims) string { return sign(t, jwt.SigningMethodHS256, []byte(secret), c) }
	good := hs256(with("", nil))
	parts := strings.Split(good, ".")
	forged := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"1002","role":"ops"}`))
	for name, raw := range map[string]string{
		"alg none":                 sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, with("", nil)),
		"alg none, signature kept": base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + parts[1] + "." + parts[2],
		"RS256":                    sign(t, jwt.SigningMethodRS256, rsaKey, with("", nil)),
		"HS512":                    sign(t, jwt.SigningMethodHS512, []byte(secret), with("", nil)),
		"HS384":                    sign(t, jwt.SigningMethodHS384, []byte(secret), with("", nil)),
		"wrong secret":             sign(t, jwt.SigningMethodHS256, []byte(secret+"x"), with("", nil)),
		"empty secret":             sign(t, jwt.SigningMethodHS256, []byte{}, with("", nil)),
		"other claims":             parts[0] + "." + forged + "." + parts[2],
		"no signature":             parts[0] + "." + parts[1] + ".",
		"two parts":                parts[0] + "." + parts[1],
		"empty":                    "",
		"not yet valid":            hs256(with("nbf", now().Add(time.Minute).Unix())),
		"sub is a number":          hs256(with("sub", 1001)),
		"no sub":                   hs256(with("sub", nil)),
		"sub empty":                hs256(with("sub", "")),
		"sub 0":                    hs256(with("sub", "0")),
		"sub -1":                   hs256(with("sub", "-1")),
		"sub 01":                   hs256(with("sub", "01")),
		"sub +1":                   hs256(with("sub", "+1")),
		"sub 1.0":                  hs256(with("sub", "1.0")),
		"sub 1e3":                  hs256(with("sub", "1e3")),
		"sub 0x1":                  hs256(with("sub", "0x1")),
		"sub 1_000":                hs256(with("sub", "1_000")),
		"sub with blank":           hs256(with("sub", "1 ")),
		"sub full-width":           hs256(with("sub", "１")),
		"sub too large":            hs256(with("sub", "9223372036854775808")),
		"sub text":                 hs256(with("sub", "alice")),
		"role unknown":             hs256(with("role", "admin")),
		"role OPS":                 hs256(with("role", "OPS")),
		"role is a list":           hs256(with("role", []string{"ops"})),
		"exp is text":              hs256(with("exp", "never")),
	} {
		if status, code, caller := ask("Bearer " + raw); status != http.StatusUnauthorized || code != "bearer_invalid" {
			t.Errorf("%s: %d %s, caller %+v", name, status, code, caller)
		}
	}
}

func TestTheHeaderHasOneForm(t *testing.T) {
	good, err := Sign(secret, Caller{UserID: 1001}, now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		headers []string
		code    string
	}{
		"missing":          {nil, "bearer_missing"},
		"empty":            {[]string{""}, "bearer_invalid"},
		"no scheme":        {[]string{good}, "bearer_invalid"},
		"basic":            {[]string{"Basic " + good}, "bearer_invalid"},
		"two of the same":  {[]string{"Bearer " + good, "Bearer " + good}, "bearer_invalid"},
		"good and bad":     {[]string{"Bearer " + good, "Bearer x"}, "bearer_invalid"},
		"list in one line": {[]string{"Bearer " + good + ", Bearer " + good}, "bearer_invalid"},
		"two blanks":       {[]string{"Bearer  " + good}, "bearer_invalid"},
		"blank behind":     {[]string{"Bearer " + good + " "}, "bearer_invalid"},
	} {
		if status, code, _ := ask(c.headers...); status != http.StatusUnauthorized || code != c.code {
			t.Errorf("%s: %d %s, want %s", name, status, code, c.code)
		}
	}
}

func TestATokenEndsAtItsTime(t *testing.T) {
	for offset, want := range map[time.Duration]int{time.Second: 200, 0: 401, -time.Second: 401, -1000 * time.Hour: 401} {
		raw, err := Sign(secret, Caller{UserID: 1}, now().Add(offset))
		if err != nil {
			t.Fatal(err)
		}
		status, code, _ := ask("Bearer " + raw)
		if status != want || status == 401 && code != "bearer_expired" {
			t.Errorf("%v: %d %s, want %d", offset, status, code, want)
		}
	}
}

func TestOperatorsRoutesAreForOperators(t *testing.T) {
	for caller, want := range map[Caller]int{{}: 403, {UserID: 1001}: 403, {UserID: 1, Ops: true}: 200} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		w := httptest.NewRecorder()
		called := false
		RequireOps(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true })).
			ServeHTTP(w, r.WithContext(With(r.Context(), caller)))
		if w.Code != want || called != (want == 200) {
			t.Errorf("%+v: %d, handler called: %v", caller, w.Code, called)
		}
		if want == 403 && !strings.Contains(w.Body.String(), `"code":"ops_only"`) {
			t.Errorf("%+v: %s", caller, w.Body)
		}
	}
}

func TestACallerSeesWhatIsTheirs(t *testing.T) {
	user, ops := Caller{UserID: 1001}, Caller{UserID: 1, Ops: true}
	if !user.MaySee(1001) || user.MaySee(1002) || !ops.MaySee(1002) {
		t.Error("MaySee is wrong")
	}
	if user.Actor() != "user:1001" || ops.Actor() != "ops:1" {
		t.Errorf("%s, %s", user.Actor(), ops.Actor())
	}
	if From(t.Context()) != (Caller{}) {
		t.Error("a caller from nowhere")
	}
}
