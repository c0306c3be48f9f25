package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/testenv"
)

// running is a whole program as main runs it, in this process.
type running struct {
	url    string
	text   string // what it said to the person who started it
	stop   context.CancelFunc
	result chan error
}

// start calls run and returns once it serves.
func start(t *testing.T, vars map[string]string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stdout, w := io.Pipe()
	r := &running{stop: cancel, result: make(chan error, 1)}
	logs := &lockedBuffer{}
	go func() {
		err := run(ctx, nil, func(name string) string { return vars[name] }, w, logs)
		w.Close()
		r.result <- err
	}()
	const last = "Ctrl-C"
	for lines := bufio.NewScanner(stdout); !strings.Contains(r.text, last) && lines.Scan(); {
		r.text += lines.Text() + "\n"
	}
	found := regexp.MustCompile(`ready on (http://\S+)`).FindStringSubmatch(r.text)
	if found == nil {
		t.Fatalf("no service: %v\n%s", <-r.result, logs)
	}
	r.url = found[1]
	return r
}

// client makes a stack of the program, to send requests to and look at its rows.
func (r *running) client(t *testing.T, dsn string) *stack {
	t.Helper()
	s := &stack{t: t, instances: []*instance{{url: r.url, clock: &clock{}}}, tokens: make(map[auth.Caller]string)}
	if dsn != "" {
		s.db, s.redisURL = testenv.OpenDB(t, dsn), testenv.RedisURL(t)
	}
	return s
}

// A stop signal: the request in flight gets its 201, nobody else gets in, then the process ends without a fault.
func TestStoppingLetsRequestsInFlightFinish(t *testing.T) {
	dsn := testenv.Database(t)
	mysql, proxied := testenv.BehindMySQLProxy(t, dsn)
	program := start(t, map[string]string{"MYSQL_DSN": proxied, "REDIS_URL": testenv.RedisURL(t), "HTTP_ADDR": "127.0.0.1:0"})
	s := program.client(t, dsn)
	s.sku(1, 1999, 1000)
	gate := testenv.NewGate(t)
	mysql.On(testenv.Prefix("COMMIT"), 1, testenv.Hold(gate))
	inFlight := s.background(create(0, 1001, 1, key("K1"), ""))
	gate.WaitEntered(t, 1)
	program.stop()
	testenv.Eventually(t, setupWait, "new connections are refused", func() error {
		conn, err := net.Dial("tcp", strings.TrimPrefix(program.url, "http://"))
		if err != nil {
			return nil
		}
		conn.Close()
		return errors.New("it accepts")
	})
	select {
	case err := <-program.result:
		t.Fatalf("ended with a request in flight: %v", err)
	default:
	}
	gate.Open()
	if r := <-inFlight; r.status != http.StatusCreated {
		t.Errorf("the request in flight got %v; want its order", r)
	}
	if err := <-program.result; err != nil {
		t.Errorf("run: %v", err)
	}
	s.wantRows(1)
	s.wantSound()
}

// With neither MYSQL_DSN nor REDIS_ADDR the program brings its own servers, ends them with itself, and keeps the data.
func TestTheEmbeddedDefaultEndsWhatItStarted(t *testing.T) {
	vars := map[string]string{"DATA_DIR": t.TempDir(), "HTTP_ADDR": "127.0.0.1:0"}
	buy := create(0, demoUser, demoSKU, key("K1"), "")
	var first reply
	for round := range 2 {
		program := start(t, vars)
		s := program.client(t, "")
		if !strings.Contains(program.text, "Bearer ") || !strings.Contains(program.text, program.url+"/docs") {
			t.Errorf("the welcome does not help: %s", program.text)
		}
		if round == 0 {
			buy.token = s.token(demoUser)
			first = s.must(http.StatusCreated, buy)
		} else {
			wantReplay(t, s.do(buy), first) // the data of the first run is still there
		}
		if r := s.do(call{as: operator, path: "/v1/ops/invariants"}); r.status != http.StatusOK || !strings.Contains(string(r.body), `"violations":[]`) {
			t.Errorf("invariants: %v", r)
		}
		pids := serverPids(t, vars["DATA_DIR"])
		program.stop()
		if err := <-program.result; err != nil {
			t.Errorf("run: %v", err)
		}
		for name, pid := range pids {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("%s, process %d, is still there: %v", name, pid, err)
			}
		}
	}
}

// serverPids reads which processes the embedded default has started, from its lock files.
func serverPids(t *testing.T, dir string) map[string]int {
	t.Helper()
	pids := make(map[string]int)
	for _, name := range []string{"mysql", "redis"} {
		text, err := os.ReadFile(filepath.Join(dir, name, name+".lock"))
		if err != nil {
			t.Fatal(err)
		}
		var owner, server int
		if _, err := fmt.Sscan(string(text), &owner, &server); err != nil || owner != os.Getpid() || syscall.Kill(server, 0) != nil {
			t.Fatalf("%s.lock says %q: %v", name, text, err)
		}
		pids[name] = server
	}
	return pids
}

// All faults of the configuration are named in one message, before anything starts, and no secret is.
func TestAFaultyConfigurationStartsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		vars   map[string]string
		named  []string
		hidden string
	}{
		"malformed": {
			vars: map[string]string{
				"HTTP_ADDR": "nowhere", "MYSQL_DSN": "root:hunter2@tcp(127.0.0.1:3306", "REDIS_ADDR": "x", "APP_ENV": "test", "RATE_LIMIT": "-1",
				"DISABLE_GUARDS": "token,unique_index", "LOCK_TTL": "10", "TOKEN_TTL": "-1s", "TOKEN_REQUIRED": "maybe",
			},
			named:  []string{"HTTP_ADDR", "MYSQL_DSN", "REDIS_ADDR", "APP_ENV", "RATE_LIMIT", "DISABLE_GUARDS", "LOCK_TTL", "TOKEN_TTL", "TOKEN_REQUIRED"},
			hidden: "hunter2",
		},
		"unsafe in production": {
			vars:   map[string]string{"APP_ENV": "production", "AUTH_JWT_SECRET": "hunter2", "DISABLE_GUARDS": "lock"},
			named:  []string{"MYSQL_DSN", "REDIS_ADDR", "AUTH_JWT_SECRET", "DISABLE_GUARDS", "RATE_LIMIT"},
			hidden: "hunter2",
		},
	} {
		var stdout, stderr bytes.Buffer
		err := run(t.Context(), []string{"serve"}, func(v string) string { return c.vars[v] }, &stdout, &stderr)
		if err == nil {
			t.Fatalf("%s: it served", name)
		}
		for _, variable := range c.named {
			if !strings.Contains(err.Error(), variable) {
				t.Errorf("%s: the message does not name %s: %v", name, variable, err)
			}
		}
		if all := err.Error() + stdout.String() + stderr.String(); strings.Contains(all, c.hidden) {
			t.Errorf("%s: a secret is shown: %s", name, all)
		}
	}
}

// The command line: what is not known is refused, a bearer token is only for dev.
func TestTheCommandLine(t *testing.T) {
	production := map[string]string{
		"APP_ENV": "production", "AUTH_JWT_SECRET": strings.Repeat("s", 32), "RATE_LIMIT": "10", "MYSQL_DSN": "root@tcp(127.0.0.1:1)/x", "REDIS_ADDR": "127.0.0.1:1",
	}
	for _, c := range []struct {
		vars map[string]string
		args []string
		want string // in the error, or "" for success
	}{
		{nil, []string{"token", "-user", "1001"}, ""},
		{nil, []string{"token", "-user", "1", "-role", "ops"}, ""},
		{nil, []string{"token"}, "usage"},
		{nil, []string{"token", "-user", "1", "-role", "root"}, "usage"},
		{production, []string{"token", "-user", "1001"}, "only in dev"},
		{nil, []string{"serve", "now"}, "no arguments"},
		{nil, []string{"destroy"}, "unknown command"},
	} {
		var stdout bytes.Buffer
		err := run(t.Context(), c.args, func(v string) string { return c.vars[v] }, &stdout, io.Discard)
		if c.want == "" && (err != nil || strings.Count(stdout.String(), ".") != 2) {
			t.Errorf("%q: %v, %q; want a JWT", c.args, err, stdout.String())
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v; want an error with %q", c.args, err, c.want)
		}
	}
}
