package embedded

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parentDirEnv makes the test binary act as a parent: it starts both servers in that directory and waits to be killed.
const parentDirEnv = "EMBEDDED_TEST_PARENT_DIR"

func TestKilledParentLeavesNoOrphanAndLosesNoRow(t *testing.T) {
	if dir := os.Getenv(parentDirEnv); dir != "" {
		actAsParent(t, dir)
	}
	dir := t.TempDir()
	parent := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	// Its sockets' directories are left behind by the kill; here they go with the test.
	parent.Env = append(os.Environ(), parentDirEnv+"="+dir, "TMPDIR="+shortTempDir(t))
	parent.Stderr = os.Stderr
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = parent.Process.Kill(); _ = parent.Wait() }()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var mysqlPid, redisPid int
	if _, err := fmt.Sscan(line, &mysqlPid, &redisPid); err != nil {
		t.Fatalf("parent said %q: %v", line, err)
	}
	t.Cleanup(func() {
		if t.Failed() { // leave none behind even then
			_, _ = syscall.Kill(mysqlPid, syscall.SIGKILL), syscall.Kill(redisPid, syscall.SIGKILL)
		}
	})
	if !running(mysqlPid) || !running(redisPid) {
		t.Fatalf("servers %d and %d do not run under the parent", mysqlPid, redisPid)
	}

	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	m := mustMySQL(t, dir) // at once: it waits for its dying predecessor by itself
	wantRows(t, m, 1)
	waitUntil(t, "orphans are gone", func() bool { return !running(mysqlPid) && !running(redisPid) })
}

// actAsParent does not return.
func actAsParent(t *testing.T, dir string) {
	log := slog.New(slog.DiscardHandler)
	m, err := StartMySQL(t.Context(), dir, log)
	if err != nil {
		t.Fatal(err)
	}
	r, err := StartRedis(t.Context(), dir, log)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, m, "CREATE DATABASE shop")
	mustExec(t, m, "CREATE TABLE shop.t (id INT PRIMARY KEY) ENGINE=InnoDB")
	mustExec(t, m, "INSERT INTO shop.t VALUES (1)")
	if err := r.Pause(); err != nil { // a paused server must die too
		t.Fatal(err)
	}
	fmt.Println(m.Pid(), r.Pid())
	for {
		time.Sleep(time.Hour)
	}
}

func TestServerOutlivesTheThreadThatCalledStart(t *testing.T) {
	var (
		r      *Redis
		err    error
		dir    = t.TempDir()
		thread = onDyingThread(func() { r, err = StartRedis(t.Context(), dir, slog.New(slog.DiscardHandler)) })
	)
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, r.Server)
	waitUntil(t, "thread has ended", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", thread))
		return err != nil
	})
	if err := r.probe(t.Context()); err != nil {
		t.Errorf("server went with the thread: %v", err)
	}
}

// onDyingThread runs f on a thread that ends soon after, and returns the thread's id.
func onDyingThread(f func()) int {
	thread := make(chan int)
	go func() {
		runtime.LockOSThread()
		id := syscall.Gettid()
		if id == os.Getpid() {
			// The main thread never ends; while it is locked here, another one must do it.
			defer runtime.UnlockOSThread()
			thread <- onDyingThread(f)
			return
		}
		f()
		thread <- id // still locked: the runtime ends the thread with this goroutine
	}()
	return <-thread
}

func TestServerIsInItsOwnProcessGroup(t *testing.T) {
	r := mustRedis(t, t.TempDir())
	group, err := syscall.Getpgid(r.Pid())
	if err != nil {
		t.Fatal(err)
	}
	if group == syscall.Getpgrp() {
		t.Error("Ctrl-C at the terminal would reach the server before Stop")
	}
}

// running tells whether a process exists and is not a zombie, which only waits for its parent to read its state.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func waitUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testWait); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v until %s", testWait, what)
		}
		time.Sleep(pollInterval)
	}
}

// shortTempDir is a directory for sockets; t.TempDir's path, with the test's name in it, is too long for one.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "oncepay-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
