package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func load(vars map[string]string) (*Config, error) {
	return Load(func(name string) string { return vars[name] })
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	got, err := load(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		HTTPAddr: "127.0.0.1:8080", AppEnv: "dev", MigrateOnStart: true, DataDir: ".oncepay",
		JWTSecret: DevJWTSecret, RequestTimeout: 10 * time.Second, OrderPayTimeout: 15 * time.Minute, TokenTTL: 15 * time.Minute,
		LockTTL: 10 * time.Second, LockWait: 2 * time.Second, KeyLease: 90 * time.Second, KeyRetention: 72 * time.Hour,
		MockpaySecret: DevMockpaySecret, Mockpay2Secret: DevMockpay2Secret, SignatureTolerance: 300 * time.Second,
		NotifySecret: DevNotifySecret,
	}
	if g, w := fmt.Sprintf("%#v", *got), fmt.Sprintf("%#v", want); g != w || got.JWTSecret != DevJWTSecret {
		t.Errorf("got  %s\nwant %s", g, w)
	}
	if !got.EmbeddedMySQL() || !got.EmbeddedRedis() || got.Production() {
		t.Error("the default is not dev on embedded servers")
	}
}

func TestEveryVariableIsRead(t *testing.T) {
	vars := map[string]string{
		"HTTP_ADDR": " :9000 ", "PUBLIC_URL": "https://pay.example.com", "APP_ENV": "dev", "MYSQL_DSN": "u:p@tcp(db:3306)/shop",
		"MIGRATE_ON_START": "false", "REDIS_ADDR": "r1:6379, r2:6379", "REDIS_URL": "redis+sentinel://:pw@s1:26379,s2:26379/main",
		"DATA_DIR": "/data", "AUTH_JWT_SECRET": "secret", "RATE_LIMIT": "20", "TOKEN_REQUIRED": "true",
		"DISABLE_GUARDS": "token, lock,idempotency_key", "REQUEST_TIMEOUT": "1s", "ORDER_PAY_TIMEOUT": "2s", "TOKEN_TTL": "3s",
		"LOCK_TTL": "4s", "LOCK_WAIT": "500ms", "IDEMPOTENCY_LEASE": "6s", "IDEMPOTENCY_RETENTION": "7s",
		"MOCKPAY_URL": "http://127.0.0.1:9090/", "MOCKPAY_SECRET": "new,old", "MOCKPAY2_SECRET": "two", "SIGNATURE_TOLERANCE": "8s",
		"DERIVE_IDEMPOTENCY_KEYS": "10s", "KAFKA_BROKERS": "k1:9092, k2:9092", "NOTIFY_URL": "https://shop.example.com/hook",
		"NOTIFY_SECRET": "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz", "DEDUP_BLOOM": "true",
	}
	for _, v := range Variables() {
		if vars[v.Name] == "" {
			t.Errorf("%s is not in this test", v.Name)
		}
		if v.Meaning == "" {
			t.Errorf("%s has no meaning", v.Name)
		}
	}
	got, err := load(vars)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		HTTPAddr: ":9000", PublicURL: "https://pay.example.com", AppEnv: "dev", MySQLDSN: "u:p@tcp(db:3306)/shop",
		RedisAddr: "r1:6379, r2:6379", RedisURL: "redis+sentinel://:pw@s1:26379,s2:26379/main", DataDir: "/data", JWTSecret: "secret",
		RateLimit: 20, TokenRequired: true, DisableGuards: []string{"token", "lock", "idempotency_key"},
		RequestTimeout: time.Second, OrderPayTimeout: 2 * time.Second, TokenTTL: 3 * time.Second, LockTTL: 4 * time.Second,
		LockWait: 500 * time.Millisecond, KeyLease: 6 * time.Second, KeyRetention: 7 * time.Second,
		MockpayURL: "http://127.0.0.1:9090", MockpaySecret: "new,old", Mockpay2Secret: "two", SignatureTolerance: 8 * time.Second,
		DeriveKeysFor: 10 * time.Second, KafkaBrokers: []string{"k1:9092", "k2:9092"}, NotifyURL: "https://shop.example.com/hook",
		NotifySecret: "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz", DedupBloom: true,
	}
	type plain Config // shows the secrets, which must arrive too
	if g, w := fmt.Sprintf("%+v", plain(*got)), fmt.Sprintf("%+v", plain(want)); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
	if got.EmbeddedMySQL() || got.EmbeddedRedis() || !got.Disabled(GuardToken) || !got.Disabled(GuardLock) || !got.Disabled(GuardIdempotencyKey) {
		t.Error("servers or guards are misread")
	}
}

func TestAMalformedValueIsRefusedByName(t *testing.T) {
	for name, values := range map[string][]string{
		"HTTP_ADDR":               {"8080", "localhost", "a:b:c"},
		"PUBLIC_URL":              {"pay.example.com", "/path", "ftp://x", "http://", "://"},
		"APP_ENV":                 {"prod", "Production", "test"},
		"MYSQL_DSN":               {"root@tcp(127.0.0.1:3306)/", "root@tcp(127.0.0.1:3306)", "tcp(", "mysql://root@h/db", "root@tcp(h:1)/db?parseTime=maybe"},
		"MIGRATE_ON_START":        {"yes", "2"},
		"REDIS_ADDR":              {"localhost", "a:1,b", "a:1,", ",", "a:redis", "a:65536"},
		"REDIS_URL":               {"localhost:6379", "http://x", "redis://h/x", "redis+sentinel:///main", "redis+sentinel://h:1", "redis+sentinel://h:1/"},
		"RATE_LIMIT":              {"0", "-1", "1.5", "on", "1e3"},
		"TOKEN_REQUIRED":          {"ja"},
		"DISABLE_GUARDS":          {"tokens", "unique_index", "state", "token,", "token;lock"},
		"REQUEST_TIMEOUT":         {"10", "0s", "-1s", "1m0", "1us"},
		"ORDER_PAY_TIMEOUT":       {"0"},
		"TOKEN_TTL":               {"x"},
		"LOCK_TTL":                {"-10s"},
		"LOCK_WAIT":               {"0s"},
		"IDEMPOTENCY_LEASE":       {"1"},
		"IDEMPOTENCY_RETENTION":   {"3d"},
		"DERIVE_IDEMPOTENCY_KEYS": {"on", "0s", "-1s"},
		"KAFKA_BROKERS":           {"kafka", "k:9092,"},
		"NOTIFY_URL":              {"shop.example.com"},
		"NOTIFY_SECRET":           {"secret", "whsec_", "whsec_c2hvcnQ=", "whsec_no base64 at all, no base64"},
		"DEDUP_BLOOM":             {"maybe"},
	} {
		for _, value := range values {
			if _, err := load(map[string]string{name: value}); err == nil || !strings.Contains(err.Error(), name+":") {
				t.Errorf("%s=%q: %v", name, value, err)
			}
		}
	}
}

func TestAllFaultsAreReportedAtOnce(t *testing.T) {
	_, err := load(map[string]string{
		"HTTP_ADDR": "x", "APP_ENV": "x", "MYSQL_DSN": "x", "REDIS_ADDR": "x", "RATE_LIMIT": "x", "DISABLE_GUARDS": "x",
		"LOCK_WAIT": "1h", "IDEMPOTENCY_LEASE": "100h",
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{"HTTP_ADDR", "APP_ENV", "MYSQL_DSN", "REDIS_ADDR", "RATE_LIMIT", "DISABLE_GUARDS", "LOCK_WAIT", "IDEMPOTENCY_LEASE"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
}

func TestTimesThatContradictEachOtherAreRefused(t *testing.T) {
	for _, c := range []struct {
		vars map[string]string
		ok   bool
	}{
		{map[string]string{"LOCK_WAIT": "10s"}, false},
		{map[string]string{"LOCK_WAIT": "9999ms"}, true},
		{map[string]string{"REQUEST_TIMEOUT": "2s"}, false},
		{map[string]string{"IDEMPOTENCY_RETENTION": "89s"}, false},
		{map[string]string{"IDEMPOTENCY_RETENTION": "90s"}, true},
	} {
		if _, err := load(c.vars); (err == nil) != c.ok {
			t.Errorf("%v: %v", c.vars, err)
		}
	}
}

// production returns settings that production accepts.
func production() map[string]string {
	return map[string]string{
		"APP_ENV": "production", "MYSQL_DSN": "u:p@tcp(db:3306)/shop", "REDIS_ADDR": "r:6379",
		"AUTH_JWT_SECRET": strings.Repeat("s", MinSecretBytes), "RATE_LIMIT": "100",
	}
}

func TestProductionAcceptsSafeSettings(t *testing.T) {
	c, err := load(production())
	if err != nil || !c.Production() {
		t.Error(err)
	}
}

func TestProductionRefusesEachUnsafeSettingByName(t *testing.T) {
	for _, c := range []struct{ name, value, says string }{
		{"MYSQL_DSN", "", "MYSQL_DSN is needed"},
		{"REDIS_ADDR", "", "REDIS_ADDR or REDIS_URL is needed"},
		{"AUTH_JWT_SECRET", "", "AUTH_JWT_SECRET is the public dev secret"},
		{"AUTH_JWT_SECRET", DevJWTSecret, "AUTH_JWT_SECRET is the public dev secret"},
		{"AUTH_JWT_SECRET", strings.Repeat("s", MinSecretBytes-1), "AUTH_JWT_SECRET has 31 bytes"},
		{"DISABLE_GUARDS", "lock", "DISABLE_GUARDS is for training"},
		{"RATE_LIMIT", "off", "RATE_LIMIT must be a number"},
		{"RATE_LIMIT", "", "RATE_LIMIT must be a number"},
		{"NOTIFY_URL", "https://shop.example.com/hook", "NOTIFY_SECRET is the public dev secret"},
	} {
		vars := production()
		vars[c.name] = c.value
		_, err := load(vars)
		if err == nil || !strings.Contains(err.Error(), "APP_ENV=production: "+c.says) || strings.Count(err.Error(), "APP_ENV=production") != 1 {
			t.Errorf("%s=%q: %v; want only %q", c.name, c.value, err, c.says)
		}
	}
	_, err := load(map[string]string{"APP_ENV": "production", "DISABLE_GUARDS": "token"})
	if err == nil || strings.Count(err.Error(), "APP_ENV=production") != 5 {
		t.Errorf("all of them at once: %v", err)
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	c, err := load(map[string]string{
		"MYSQL_DSN": "shop:hunter2@tcp(db:3306)/shop", "REDIS_URL": "rediss://:hunter2@r:6379/1", "AUTH_JWT_SECRET": "hunter2-and-more",
		"PUBLIC_URL": "https://channel:hunter2@pay.example.com",
	})
	if err != nil {
		t.Fatal(err)
	}
	broken := Config{MySQLDSN: "shop:hunter2", RedisURL: "redis://:hunter2@r:x"} // as a test or a tool might build it
	for _, shown := range []string{
		c.String(), fmt.Sprint(c), fmt.Sprint(*c), fmt.Sprintf("%v %+v %#v %s", c, c, c, c), fmt.Sprintf("%v %+v %#v %s", *c, *c, *c, *c),
		fmt.Sprintf("%q", *c), fmt.Sprintf("%+v", struct{ Cfg *Config }{c}.Cfg), broken.String(),
	} {
		if strings.Contains(shown, "hunter2") {
			t.Errorf("shows a secret: %s", shown)
		}
	}
	for _, kept := range []string{"db:3306", "r:6379", "pay.example.com"} {
		if !strings.Contains(c.String(), kept) {
			t.Errorf("%s is not shown: %s", kept, c)
		}
	}
}

func TestErrorsNeverShowAPassword(t *testing.T) {
	for name, values := range map[string][]string{
		"MYSQL_DSN": {
			"root:hunter2@tcp(db:3306)", "root:hunter2@tcp(db:3306)/", "root:hunter2@tcp(db:3306/x", "root:hunter2/x@tcp(db:3306)",
			"root:hunter2/@tcp(db:3306)", "root:hunter2@nonet/x", "root:hunter2@tcp(db:3306)/x?parseTime=hunter2", "root:x?hunter2=@unix/x?y=%zz",
		},
		"REDIS_URL": {
			"redis://:hunter2@r:port", "redis://:hunter2%zz@r:1", "redis://:hunter2@r:1/db", "http://:hunter2@r:1", "redis+sentinel://:hunter2@s:1",
			"redis+sentinel://:hunter2@/main", "redis://r:1/?hunter2=1@",
		},
		"REDIS_ADDR": {"redis://:hunter2@r:6379", "r:6379,redis://:hunter2@r:6379", ":hunter2@r"},
		"PUBLIC_URL": {"http://u:hunter2@h:port", "u:hunter2@h"},
	} {
		for _, value := range values {
			_, err := load(map[string]string{name: value})
			if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s=%q: %v", name, value, err)
			}
			for ; err != nil; err = errors.Unwrap(err) {
				if strings.Contains(fmt.Sprintf("%#v", err), "hunter2") {
					t.Errorf("%s=%q: the chain shows it: %#v", name, value, err)
				}
			}
		}
	}
}

func TestAMissingDatabaseIsSaidEvenBesideAPassword(t *testing.T) {
	_, err := load(map[string]string{"MYSQL_DSN": "root:pw@tcp(db:3306)/"})
	if err == nil || !strings.Contains(err.Error(), "names no database") {
		t.Error(err)
	}
}
