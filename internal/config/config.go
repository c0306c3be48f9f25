// Package config turns the environment into one validated struct. Every fault is reported at once, before anything
// starts, and secrets never appear in what it prints.
package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
)

// The guards that training may switch off (DISABLE_GUARDS). The data layer is not among them.
const (
	GuardToken          = "token"
	GuardLock           = "lock"
	GuardIdempotencyKey = "idempotency_key"
)

// DevJWTSecret signs bearer tokens in dev, where anybody may make one. Production refuses it.
const DevJWTSecret = "oncepay-dev-secret-not-for-production"

// The fake channels' dev secrets, which sign notices. Production has no fake channels.
const (
	DevMockpaySecret  = "whsec_dev"
	DevMockpay2Secret = "whsec_dev2"
)

// DevNotifySecret signs what the notification consumer sends. Production refuses it.
const DevNotifySecret = "whsec_b25jZXBheS1kZXYtbm90aWZpY2F0aW9ucw=="

// MinSecretBytes is the least length of a secret in production: HS256 wants a key as long as its hash (RFC 7518 §3.2).
const MinSecretBytes = 32

// Config is the whole configuration. Durations are positive, addresses well formed.
type Config struct {
	HTTPAddr  string
	PublicURL string
	AppEnv    string // "dev" or "production"

	MySQLDSN       string // empty: the embedded default
	MigrateOnStart bool
	RedisAddr      string
	RedisURL       string
	DataDir        string

	JWTSecret     string
	RateLimit     int // requests per second and caller; 0: off
	TokenRequired bool
	DisableGuards []string

	RequestTimeout  time.Duration
	OrderPayTimeout time.Duration
	TokenTTL        time.Duration
	LockTTL         time.Duration
	LockWait        time.Duration
	KeyLease        time.Duration
	KeyRetention    time.Duration

	MockpayURL         string // empty: in-process, dev only
	MockpaySecret      string
	Mockpay2Secret     string
	SignatureTolerance time.Duration

	KafkaBrokers  []string // none: Redis Streams carry the messages
	NotifyURL     string   // empty: nobody is notified
	NotifySecret  string
	DedupBloom    bool
	DeriveKeysFor time.Duration // 0: a POST without a key is refused where it needs one
}

// Variable describes one environment variable; docs/configuration.md is tested against this list.
type Variable struct {
	Name, Default, Meaning string
	set                    func(*Config, string) error
}

// Variables lists every variable the service reads, in the order of the documentation.
func Variables() []Variable {
	return []Variable{
		{"HTTP_ADDR", "127.0.0.1:8080", "where the API listens", func(c *Config, s string) error {
			c.HTTPAddr = s
			_, _, err := net.SplitHostPort(s)
			return err
		}},
		{"PUBLIC_URL", "", "what channels call back. Empty: `http://` + `HTTP_ADDR`", func(c *Config, s string) error {
			c.PublicURL = strings.TrimRight(s, "/")
			return absoluteURL(s)
		}},
		{"APP_ENV", "dev", "`dev` or `production`; production refuses unsafe settings and says which", func(c *Config, s string) error {
			c.AppEnv = s
			return oneOf(s, "dev", "production")
		}},
		{"MYSQL_DSN", "", "go-sql-driver form, e.g. `root@tcp(127.0.0.1:3306)/oncepay`; the database is created. Empty: the embedded default", func(c *Config, s string) error {
			c.MySQLDSN = s
			return mysqlDSN(s)
		}},
		{"MIGRATE_ON_START", "true", "`false`: refuse to start on a schema that is not current instead of migrating it", func(c *Config, s string) (err error) {
			c.MigrateOnStart, err = strconv.ParseBool(s)
			return err
		}},
		{"REDIS_ADDR", "", "`host:port`, or a comma list for a cluster. Empty, and no `REDIS_URL`: the embedded default", func(c *Config, s string) error {
			c.RedisAddr = s
			return hostPorts(s)
		}},
		{"REDIS_URL", "", "for passwords, TLS, a database number; wins over `REDIS_ADDR`. `redis+sentinel://host:port/master` for Sentinel", func(c *Config, s string) error {
			c.RedisURL = s
			return redisURL(s)
		}},
		{"DATA_DIR", ".oncepay", "where the embedded default keeps its data", func(c *Config, s string) error { c.DataDir = s; return nil }},
		{"AUTH_JWT_SECRET", DevJWTSecret, "HS256 key for the bearer tokens; the default is for dev only", func(c *Config, s string) error { c.JWTSecret = s; return nil }},
		{"MOCKPAY_URL", "", "the fake payment channel's server (`cmd/mockpay`). Empty: in dev the api serves it itself under `/mockpay`", func(c *Config, s string) error {
			c.MockpayURL = strings.TrimRight(s, "/")
			return absoluteURL(s)
		}},
		{"MOCKPAY_SECRET", DevMockpaySecret, "signs the notices of channel `mockpay`; comma list while it rotates", func(c *Config, s string) error { c.MockpaySecret = s; return secretList(s) }},
		{"MOCKPAY2_SECRET", DevMockpay2Secret, "likewise for channel `mockpay2`", func(c *Config, s string) error { c.Mockpay2Secret = s; return secretList(s) }},
		{"SIGNATURE_TOLERANCE", "300s", "how far a notice's signature time may be from now, in both directions. Five minutes cover honest clocks (Stripe and WeChat Pay use the same)", duration(func(c *Config) *time.Duration { return &c.SignatureTolerance })},
		{"RATE_LIMIT", "off", "requests per second and caller; production needs a number", func(c *Config, s string) (err error) {
			if s != "off" {
				c.RateLimit, err = positive(s)
			}
			return err
		}},
		{"TOKEN_REQUIRED", "false", "`true`: an order without a submit token is refused", func(c *Config, s string) (err error) {
			c.TokenRequired, err = strconv.ParseBool(s)
			return err
		}},
		{"DISABLE_GUARDS", "", "for training: comma list of `token`, `lock`, `idempotency_key`; the data layer cannot be disabled", func(c *Config, s string) error {
			return guards(c, s)
		}},
		{"REQUEST_TIMEOUT", "10s", "a request's own deadline. Ten times the slowest honest request, and under the 15 s at which browsers' users and gateways give up", duration(func(c *Config) *time.Duration { return &c.RequestTimeout })},
		{"ORDER_PAY_TIMEOUT", "15m", "unpaid orders are closed after this. The usual time a shop holds stock for a buyer", duration(func(c *Config) *time.Duration { return &c.OrderPayTimeout })},
		{"TOKEN_TTL", "15m", "life of a submit token, renewed by submitting. Long enough to fill in a form, which 5 minutes were not (article S0 §5.2)", duration(func(c *Config) *time.Duration { return &c.TokenTTL })},
		{"LOCK_TTL", "10s", "life of a lock between renewals, which come every third of it. Bounds the wait after a crash (S0 §7.1)", duration(func(c *Config) *time.Duration { return &c.LockTTL })},
		{"LOCK_WAIT", "2s", "how long a request queues for a lock or a twin's result. A person waits this long without clicking again", duration(func(c *Config) *time.Duration { return &c.LockWait })},
		{"IDEMPOTENCY_LEASE", "90s", "how long a run that crossed a channel call may hold its key before another takes over. Beyond any request's deadline", duration(func(c *Config) *time.Duration { return &c.KeyLease })},
		{"IDEMPOTENCY_RETENTION", "72h", "how long an answer can be replayed (`720h` for payments and refunds). Outlives a weekend of retries", duration(func(c *Config) *time.Duration { return &c.KeyRetention })},
		{"DERIVE_IDEMPOTENCY_KEYS", "off", "last resort for old callers that send no Idempotency-Key: a duration such as `10s`, within which equal POSTs of one caller are taken for one", func(c *Config, s string) error {
			if s == "off" {
				return nil
			}
			return duration(func(c *Config) *time.Duration { return &c.DeriveKeysFor })(c, s)
		}},
		{"KAFKA_BROKERS", "", "comma list of `host:port`: messages go through Kafka. Empty: through Redis Streams", func(c *Config, s string) error {
			c.KafkaBrokers = List(s)
			return hostPorts(s)
		}},
		{"NOTIFY_URL", "", "an endpoint that is told of each paid order, once. Empty: nobody is", func(c *Config, s string) error {
			c.NotifyURL = s
			return absoluteURL(s)
		}},
		{"NOTIFY_SECRET", DevNotifySecret, "signs what is sent to `NOTIFY_URL` (Standard Webhooks: `whsec_` and base64); the default is for dev only", func(c *Config, s string) error {
			c.NotifySecret = s
			return webhookSecret(s)
		}},
		{"DEDUP_BLOOM", "false", "`true`: a Bloom filter in front of the dedup insert, which pays when most messages are repeats", func(c *Config, s string) (err error) {
			c.DedupBloom, err = strconv.ParseBool(s)
			return err
		}},
	}
}

// Load reads the environment through getenv. The error names every faulty variable.
func Load(getenv func(string) string) (*Config, error) {
	c := &Config{}
	var faults []error
	for _, v := range Variables() {
		value := strings.TrimSpace(getenv(v.Name))
		if value == "" {
			value = v.Default
		}
		if value == "" {
			continue
		}
		if err := v.set(c, value); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", v.Name, redact(err, value)))
		}
	}
	if c.LockWait >= c.RequestTimeout {
		faults = append(faults, fmt.Errorf("LOCK_WAIT (%v) must be shorter than REQUEST_TIMEOUT (%v), or waiting ends in a timeout", c.LockWait, c.RequestTimeout))
	}
	if c.KeyLease > c.KeyRetention {
		faults = append(faults, fmt.Errorf("IDEMPOTENCY_LEASE (%v) must not exceed IDEMPOTENCY_RETENTION (%v)", c.KeyLease, c.KeyRetention))
	}
	if c.Production() {
		faults = append(faults, c.unsafe()...)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("configuration:\n%w", errors.Join(faults...))
	}
	return c, nil
}

// unsafe lists what may be convenient in dev and must not reach production.
func (c *Config) unsafe() []error {
	var faults []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("APP_ENV=production: "+format, args...))
		}
	}
	refuse(c.MySQLDSN == "", "MYSQL_DSN is needed; the embedded default is for dev")
	refuse(c.RedisAddr == "" && c.RedisURL == "", "REDIS_ADDR or REDIS_URL is needed; the embedded default is for dev")
	refuse(c.JWTSecret == DevJWTSecret, "AUTH_JWT_SECRET is the public dev secret")
	refuse(len(c.JWTSecret) < MinSecretBytes, "AUTH_JWT_SECRET has %d bytes; at least %d are needed", len(c.JWTSecret), MinSecretBytes)
	refuse(c.MockpayURL != "", "MOCKPAY_URL names a fake payment channel, through which anybody can pay")
	refuse(len(c.DisableGuards) > 0, "DISABLE_GUARDS is for training only")
	refuse(c.RateLimit == 0, "RATE_LIMIT must be a number")
	refuse(c.NotifyURL != "" && c.NotifySecret == DevNotifySecret, "NOTIFY_SECRET is the public dev secret")
	return faults
}

// Production reports whether unsafe settings are refused.
func (c *Config) Production() bool { return c.AppEnv == "production" }

// Disabled reports whether training switched a guard off.
func (c *Config) Disabled(guard string) bool { return slices.Contains(c.DisableGuards, guard) }

// EmbeddedMySQL reports whether a private MySQL-compatible server is wanted.
func (c *Config) EmbeddedMySQL() bool { return c.MySQLDSN == "" }

// EmbeddedRedis reports whether a private Redis is wanted.
func (c *Config) EmbeddedRedis() bool { return c.RedisAddr == "" && c.RedisURL == "" }

// String shows the configuration without its secrets.
func (c Config) String() string {
	c.JWTSecret, c.MockpaySecret, c.Mockpay2Secret, c.NotifySecret = "[redacted]", "[redacted]", "[redacted]", "[redacted]"
	if c.MySQLDSN != "" {
		dsn, err := mysql.ParseDSN(c.MySQLDSN)
		if err != nil {
			c.MySQLDSN = "[malformed]"
		} else {
			dsn.Passwd = ""
			c.MySQLDSN = dsn.FormatDSN()
		}
	}
	c.RedisURL, c.PublicURL, c.NotifyURL = redactURL(c.RedisURL), redactURL(c.PublicURL), redactURL(c.NotifyURL)
	type plain Config // without this method
	return fmt.Sprintf("%+v", plain(c))
}

// GoString keeps %#v from showing what String hides.
func (c Config) GoString() string { return c.String() }

func redactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "[malformed]"
	}
	return u.Redacted()
}

func duration(field func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, s string) error {
		d, err := time.ParseDuration(s)
		if err == nil && d < time.Millisecond {
			err = fmt.Errorf("%v is not a positive duration", d)
		}
		*field(c) = d
		return err
	}
}

func positive(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err == nil && n < 1 {
		err = fmt.Errorf("%d is not positive", n)
	}
	return n, err
}

// List splits a comma list, of servers or, newest first, of the two secrets that there are while one rotates. Empty items are left out.
func List(list string) []string {
	var items []string
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// secretList refuses a comma list with an empty item.
func secretList(s string) error {
	if len(List(s)) != strings.Count(s, ",")+1 {
		return errors.New("is a comma list without empty items")
	}
	return nil
}

// webhookSecret refuses what cannot sign a Standard Webhooks message: whsec_ and the base64 of 24 to 64 bytes.
func webhookSecret(s string) error {
	encoded, ok := strings.CutPrefix(s, "whsec_")
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(raw) < 24 || len(raw) > 64 {
		return fault("is whsec_ and the base64 of 24 to 64 bytes")
	}
	return nil
}

func oneOf(s string, allowed ...string) error {
	if !slices.Contains(allowed, s) {
		return fmt.Errorf("%q is none of %s", s, strings.Join(allowed, ", "))
	}
	return nil
}

func guards(c *Config, s string) error {
	for g := range strings.SplitSeq(s, ",") {
		g = strings.TrimSpace(g)
		if err := oneOf(g, GuardToken, GuardLock, GuardIdempotencyKey); err != nil {
			return err
		}
		c.DisableGuards = append(c.DisableGuards, g)
	}
	return nil
}

func mysqlDSN(s string) error {
	dsn, err := mysql.ParseDSN(s)
	if err == nil && dsn.DBName == "" {
		err = fault("names no database")
	}
	return err
}

func hostPorts(s string) error {
	for addr := range strings.SplitSeq(s, ",") {
		_, port, err := net.SplitHostPort(strings.TrimSpace(addr))
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func redisURL(s string) error {
	if u, err := url.Parse(s); err == nil && u.Scheme == "redis+sentinel" {
		if u.Host == "" || strings.Trim(u.Path, "/") == "" {
			return fault("wants redis+sentinel://host:port/master-name")
		}
		return nil
	}
	_, err := redis.ParseURL(s)
	return err
}

func absoluteURL(s string) error {
	u, err := url.Parse(s)
	if err == nil && (u.Host == "" || (u.Scheme != "http" && u.Scheme != "https")) {
		err = fault("is not an absolute http(s) URL")
	}
	return err
}

// fault is a text of ours about a value; it never holds the value.
type fault string

func (f fault) Error() string { return string(f) }

// redact drops a parser's text about a value with an "@", since the value may hold a password and the text a part of it.
func redact(err error, value string) error {
	var own fault
	if strings.Contains(value, "@") && !errors.As(err, &own) {
		return fault("is malformed (value not shown, it may hold a password)")
	}
	return err
}
