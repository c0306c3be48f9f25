package redisdb

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestTheAddressDecidesTheKindOfClient(t *testing.T) {
	for _, c := range []struct {
		addr, url, kind string
	}{
		{"r:6379", "", "single"},
		{"r1:6379, r2:6379", "", "cluster"},
		{"r1:6379,r2:6379", "redis://r:6379", "single"}, // the URL wins
		{"", "redis+sentinel://s1:26379,s2:26379/main", "sentinel"},
	} {
		client, err := Open(c.addr, c.url)
		if err != nil {
			t.Errorf("%q, %q: %v", c.addr, c.url, err)
			continue
		}
		kind := "single"
		switch cl := client.(type) {
		case *redis.ClusterClient:
			kind = "cluster"
			if o := cl.Options(); o.MaxRetries != -1 && o.MaxRetries != 0 || strings.Join(o.Addrs, "|") != "r1:6379|r2:6379" {
				t.Errorf("%q: %+v", c.addr, o)
			}
		case *redis.Client:
			if cl.Options().Addr == "FailoverClient" {
				kind = "sentinel"
			}
			wantOptions(t, cl.Options())
		}
		if kind != c.kind {
			t.Errorf("%q, %q: %s, want %s", c.addr, c.url, kind, c.kind)
		}
		client.Close()
	}
}

// A repeat of a claim whose reply was lost would find the claim taken, so the client must not repeat by itself; and a Redis
// that hangs must not cost a request more than a blink.
func wantOptions(t *testing.T, o *redis.Options) {
	t.Helper()
	if o.MaxRetries != 0 || o.DialerRetries != 1 { // go-redis keeps -1 as 0: none
		t.Errorf("repeats commands %d times, dials %d times", o.MaxRetries, o.DialerRetries)
	}
	if o.DialTimeout != commandTimeout || o.ReadTimeout != commandTimeout || o.WriteTimeout != commandTimeout || o.PoolTimeout != commandTimeout || !o.ContextTimeoutEnabled {
		t.Errorf("time limits: %+v", o)
	}
}

func TestTheURLCarriesPasswordDatabaseAndTLS(t *testing.T) {
	o, err := options("", "rediss://app:p%40ss@r.example.com:6380/3")
	if err != nil {
		t.Fatal(err)
	}
	if o.Username != "app" || o.Password != "p@ss" || o.DB != 3 || o.TLSConfig == nil || o.TLSConfig.ServerName != "r.example.com" || o.Addrs[0] != "r.example.com:6380" {
		t.Errorf("%+v", o)
	}
	o, err = options("", "redis+sentinel://app:p%40ss@s1:26379,s2:26379/main")
	if err != nil {
		t.Fatal(err)
	}
	if o.Username != "app" || o.Password != "p@ss" || o.MasterName != "main" || strings.Join(o.Addrs, "|") != "s1:26379|s2:26379" {
		t.Errorf("%+v", o)
	}
	for _, bad := range []string{"redis://r:port", "http://r", "redis://r/x"} {
		if _, err := Open("", bad); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}
