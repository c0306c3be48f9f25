package embedded

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
)

// testWait bounds every wait for something that must happen; only a failing test uses it up.
const testWait = 20 * time.Second

func TestMySQLKeepsAcknowledgedRowsOverKillAndOverStop(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	m := mustMySQL(t, dir)
	mustExec(t, m, "CREATE DATABASE shop")
	mustExec(t, m, "CREATE TABLE shop.t (id INT PRIMARY KEY) ENGINE=InnoDB")

	mustExec(t, m, "INSERT INTO shop.t VALUES (1)")
	before := m.Pid()
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("unix", m.Socket()); err == nil {
		t.Fatal("a killed server still accepts connections")
	}
	if err := m.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if m.Pid() == before {
		t.Fatal("Restart kept the process")
	}
	wantRows(t, m, 1)

	mustExec(t, m, "INSERT INTO shop.t VALUES (2)")
	if err := m.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	m = mustMySQL(t, dir)
	wantRows(t, m, 2)
	mustExec(t, m, "DROP DATABASE shop") // needs no system tables
}

func TestStopLeavesNoProcessNoSocketAndNoLock(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	for _, s := range []*Server{mustMySQL(t, dir).Server, mustRedis(t, dir).Server} {
		pid, socketDir := s.Pid(), filepath.Dir(s.Socket())
		info, err := os.Stat(socketDir)
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Fatalf("socket directory: mode %v, error %v; want 0700", info.Mode(), err)
		}
		for range 2 { // idempotent
			if err := s.Stop(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s: process %d after Stop: %v, want no such process", s.name, pid, err)
		}
		if _, err := os.Stat(socketDir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: socket directory after Stop: %v, want not exist", s.name, err)
		}
		if err := s.Restart(ctx); err == nil {
			t.Errorf("%s: Restart after Stop succeeded without the lock", s.name)
		}
	}
	mustMySQL(t, dir) // would wait for the lock and fail
	mustRedis(t, dir)
}

func TestStopEndsAPausedServer(t *testing.T) {
	r := mustRedis(t, t.TempDir())
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took >= stopWait {
		t.Errorf("Stop took %v: SIGTERM did not reach the paused server", took)
	}
}

func TestStopKillsAServerThatDoesNotEndInTime(t *testing.T) {
	m := mustMySQL(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if m.child.state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("server ended by %v, want SIGKILL", m.child.state)
	}
}

func TestSecondStartOnTheSameDirectoryNamesTheOwner(t *testing.T) {
	dir := t.TempDir()
	m := mustMySQL(t, dir)
	// Short: the owner is alive and stays so.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	second, err := StartMySQL(ctx, dir, slog.New(slog.DiscardHandler))
	if err == nil {
		_ = second.Stop(t.Context())
		t.Fatal("two owners of one directory")
	}
	for _, want := range []string{dir, strconv.Itoa(os.Getpid()), strconv.Itoa(m.Pid())} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %q", err, want)
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %q does not wrap the context's", err)
	}
	mustExec(t, m, "SELECT 1") // the owner is not disturbed
}

func TestDirectoryStaysLockedWhileTheServerLives(t *testing.T) {
	dir := t.TempDir()
	r := mustRedis(t, dir)
	if err := r.lock.Close(); err != nil { // as the kernel does when the parent dies
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := acquireLock(ctx, filepath.Join(dir, "redis.lock")); err == nil {
		t.Fatal("lock was free although the server lives")
	}
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	lock, err := acquireLock(t.Context(), filepath.Join(dir, "redis.lock"))
	if err != nil {
		t.Fatal(err)
	}
	r.lock = lock // for Stop
}

func TestMissingBinaryNamesEveryWayToGoOn(t *testing.T) {
	log, empty := slog.New(slog.DiscardHandler), t.TempDir()
	_, mysqlErr := startMySQL(t.Context(), t.TempDir(), log, []string{empty, "."})
	_, redisErr := startRedis(t.Context(), t.TempDir(), log, []string{empty, "."})
	for name, err := range map[string]error{"mariadbd": mysqlErr, "redis-server": redisErr} {
		var missing *NotInstalledError
		if !errors.As(err, &missing) {
			t.Fatalf("got %v, want a *NotInstalledError", err)
		}
		for _, want := range []string{
			name, empty, "make setup", "apt-get install mariadb-server-core redis-server", "brew install mariadb redis",
			"MYSQL_DSN", "REDIS_ADDR", "docker run",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error does not name %q:\n%v", want, err)
			}
		}
	}
}

func TestServerThatEndsAtStartShowsItsLog(t *testing.T) {
	dir := t.TempDir()
	// A data directory that the server cannot use.
	if err := os.WriteFile(filepath.Join(dir, "mysql"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := StartMySQL(t.Context(), dir, slog.New(slog.DiscardHandler))
	if !errors.Is(err, errEnded) {
		t.Fatalf("got %v, want %v", err, errEnded)
	}
	// The log's name, and from its text the directory: every server spells the complaint in its own words.
	for _, want := range []string{filepath.Join(dir, "mysql.log"), filepath.Join(dir, "mysql") + "/"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not contain %q:\n%v", want, err)
		}
	}
	// The failed start released the directory.
	if err := os.Remove(filepath.Join(dir, "mysql")); err != nil {
		t.Fatal(err)
	}
	mustMySQL(t, dir)
}

// A script plays MySQL 8: it insists on one initialization into an empty directory and then runs the real server.
func TestMySQL8IsInitializedOnce(t *testing.T) {
	real, err := find(searchPath(), "mariadbd", "mysqld")
	if err != nil {
		t.Fatal(err)
	}
	bin, dir := t.TempDir(), t.TempDir()
	calls := filepath.Join(bin, "initialized")
	script := `#!/bin/sh
case " $* " in
*" --version "*) echo "mysqld  Ver 8.0.40 for Linux on x86_64 (MySQL Community Server - GPL)"; exit ;;
*" --initialize-insecure "*)
	echo once >>` + calls + `
	for arg; do case $arg in --datadir=*) touch "${arg#--datadir=}/by-mysql8" ;; esac; done
	exit ;;
esac
test -e ` + dir + `/mysql/by-mysql8 || { echo "not initialized"; exit 1; }
exec ` + real + ` "$@"
`
	if err := os.WriteFile(filepath.Join(bin, "mysqld"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	// What an interrupted initialization leaves.
	if err := os.MkdirAll(filepath.Join(dir, "mysql.init", "half"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		m, err := startMySQL(t.Context(), dir, slog.New(slog.DiscardHandler), []string{bin})
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, m, "SELECT 1")
		if err := m.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(calls); err != nil || string(got) != "once\n" {
		t.Errorf("initializations: %q, %v; want exactly one", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "mysql", "half")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the interrupted initialization was used: %v", err)
	}
}

func TestRedisPauseHoldsAnswersBackUntilResume(t *testing.T) {
	r := mustRedis(t, t.TempDir())
	conn, err := net.Dial("unix", r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	reply := bufio.NewReader(conn)
	// The absence of an answer can only be watched for some time; a running Redis answers in microseconds.
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := reply.ReadByte(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("paused Redis: %v, want a timeout", err)
	}
	if err := r.Resume(); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(testWait))
	if line, err := reply.ReadString('\n'); err != nil || line != "+PONG\r\n" {
		t.Fatalf("resumed Redis: %q, %v; want +PONG", line, err)
	}
}

func TestRedisURLSuitsTheClientAndRestartEmptiesIt(t *testing.T) {
	ctx := t.Context()
	r := mustRedis(t, t.TempDir())
	options, err := redis.ParseURL(r.URL())
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	if err := client.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.Restart(ctx); err != nil { // while it runs
		t.Fatal(err)
	}
	if n, err := client.DBSize(ctx).Result(); err != nil || n != 0 {
		t.Fatalf("keys after restart: %d, %v; want none", n, err)
	}
}

func mustMySQL(t *testing.T, dir string) *MySQL {
	t.Helper()
	m, err := StartMySQL(t.Context(), dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, m.Server)
	return m
}

func mustRedis(t *testing.T, dir string) *Redis {
	t.Helper()
	r, err := StartRedis(t.Context(), dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, r.Server)
	return r
}

func stopAtEnd(t *testing.T, s *Server) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testWait) // t.Context has ended by now
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
}

func mustExec(t *testing.T, m *MySQL, query string) {
	t.Helper()
	db := mustOpen(t, m.DSN(""))
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func wantRows(t *testing.T, m *MySQL, want int) {
	t.Helper()
	db := mustOpen(t, m.DSN("shop"))
	defer db.Close()
	var got int
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM t").Scan(&got); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("%d rows, want %d", got, want)
	}
}

func mustOpen(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	return db
}
