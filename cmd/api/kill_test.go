package main

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/testenv"
)

// startProcess adds an instance that is an api process of its own, and returns its number and the process.
func (s *stack) startProcess(dsn string, env ...string) (int, *exec.Cmd) {
	s.t.Helper()
	i := &instance{clock: &clock{}, logs: &lockedBuffer{}, metrics: metrics.New()}
	i.mysql, dsn = testenv.BehindMySQLProxy(s.t, dsn)
	var redisURL string
	i.redis, redisURL = testenv.BehindRedisProxy(s.t, s.redisURL)
	binary, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.t.Context(), binary, "serve")
	cmd.Env = append(env, asAPI+"=1", "HTTP_ADDR=127.0.0.1:0", "MYSQL_DSN="+dsn, "REDIS_URL="+redisURL)
	cmd.Stderr = i.logs
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill() // ended already, as a rule
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(stdout); i.url == "" && lines.Scan(); {
		if _, url, found := strings.Cut(lines.Text(), "ready on "); found {
			i.url = url
		}
	}
	if i.url == "" {
		s.t.Fatalf("the process ended without serving: %s", i.logs)
	}
	s.instances = append(s.instances, i)
	return len(s.instances) - 1, cmd
}

// B16, B24: kill -9 under load, again and again. Every request sent once more has its one result, and no lock or token is
// left that never expires.
func TestKilledProcessesLeaveNothingHalfDone(t *testing.T) {
	dsn := testenv.Database(t)
	s := newStackOn(t, dsn, testenv.RedisURL(t), shortLocks()...)
	s.sku(1, 1999, 1000)
	s.activity("sale")
	const rounds, buyers = 2, 20
	for round := range rounds {
		number, process := s.startProcess(dsn, shortLocks()...)
		calls := make([]call, buyers)
		for i := range calls {
			user := int64(1000 + round*buyers + i)
			calls[i] = create(number, user, 1, key("K"), s.token(user))
			if i%2 == 1 {
				calls[i] = inActivity(create(number, user, 1, key("K"), ""), "sale")
			}
		}
		// One of them holds the SKU's row at its COMMIT, some come before it, the others queue behind it.
		gate := testenv.NewGate(t)
		s.instances[number].mysql.On(testenv.Prefix("COMMIT"), 5, testenv.Action{})
		s.instances[number].mysql.On(testenv.Prefix("COMMIT"), 1, testenv.Hold(gate))
		var first []reply
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			first = s.all(buyers, func(i int) call { return calls[i] })
		}()
		gate.WaitEntered(t, 1)
		if err := process.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if round%2 == 0 {
			gate.Open() // the COMMIT was on the wire and still arrives
		} else {
			s.instances[number].die() // it is lost
		}
		<-answered
		for i, c := range calls {
			r := s.finally(t, on(i%2, c))
			if first[i].status == http.StatusCreated {
				wantReplay(t, r, first[i])
			}
		}
		s.wantRows((round + 1) * buyers)
		s.wantSound()
	}
}
