package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	// startWait bounds the wait for readiness. A first start takes 0.1 s (MariaDB) to a few seconds (MySQL 8); the rest
	// is for crash recovery on a loaded machine.
	startWait = 30 * time.Second

	// maxSocketPath is the smaller of the limits for a unix socket's path, in bytes: macOS's 104 with the closing zero.
	maxSocketPath = 103

	// logTail is how much of a server's log a start error quotes, in bytes: about the last 15 lines.
	logTail = 2048
)

// Server is one private server. Its methods are safe for concurrent use; Kill, Restart, Pause and Resume are for fault
// tests.
type Server struct {
	name    string // "mysql" or "redis": names its files
	socket  string
	command []string                  // binary and arguments
	ready   func(conn net.Conn) error // nil once the server answers on a fresh connection
	log     *slog.Logger
	output  *os.File // what the server prints
	lock    lockFile

	mu      sync.Mutex
	child   *child
	stopped bool
}

// newServer takes the lock on dir and prepares the files of a server: name.lock, name.log and the socket's directory.
// On success the caller owes a release.
func newServer(ctx context.Context, name, dir string, log *slog.Logger) (_ *Server, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := acquireLock(ctx, filepath.Join(dir, name+".lock"))
	if err != nil {
		return nil, err
	}
	s := &Server{name: name, log: log, lock: lock}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
		}
	}()
	s.output, err = os.OpenFile(filepath.Join(dir, name+".log"), os.O_RDWR|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	// Not in dir, whose path may be too long for a socket. MkdirTemp creates it with mode 0700.
	socketDir, err := os.MkdirTemp("", "oncepay-")
	if err != nil {
		return nil, err
	}
	s.socket = filepath.Join(socketDir, name+".sock")
	if len(s.socket) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s is longer than %d bytes; set TMPDIR to a shorter directory",
			s.socket, maxSocketPath)
	}
	return s, nil
}

// release undoes newServer.
func (s *Server) release() error {
	var errs []error
	if s.socket != "" {
		errs = append(errs, os.RemoveAll(filepath.Dir(s.socket)))
	}
	if s.output != nil {
		errs = append(errs, s.output.Close())
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// spawn starts a process with the server's log as its output and a share in the lock.
func (s *Server) spawn(command []string) (*child, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = s.output, s.output
	cmd.ExtraFiles = []*os.File{s.lock.File}
	c, err := startChild(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	if err := s.lock.setPids(os.Getpid(), c.process.Pid); err != nil {
		return nil, errors.Join(err, c.kill())
	}
	return c, nil
}

// launch starts the server and waits until it is ready. On error no process is left.
func (s *Server) launch(ctx context.Context) error {
	c, err := s.spawn(s.command)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	err = poll(ctx, c.done, func() error { return s.probe(ctx) })
	if err != nil {
		return errors.Join(s.withLog(fmt.Errorf("wait for %s: %w", s.name, err)), c.kill())
	}
	s.child = c
	s.log.Info("embedded server started", "server", s.name, "pid", c.process.Pid, "socket", s.socket)
	go func() {
		<-c.done
		if !c.ending.Load() {
			s.log.Error("embedded server ended by itself", "server", s.name, "state", c.state.String(), "log", s.output.Name())
		}
	}()
	return nil
}

// probe asks the server on a fresh connection whether it is ready.
func (s *Server) probe(ctx context.Context) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", s.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	// One second: an answer takes microseconds, and a server that accepts but hangs must not use up startWait.
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	return s.ready(conn)
}

// withLog adds the end of the server's log to err.
func (s *Server) withLog(err error) error {
	info, statErr := s.output.Stat()
	if statErr != nil {
		return errors.Join(err, statErr)
	}
	tail := make([]byte, min(info.Size(), logTail))
	if _, readErr := s.output.ReadAt(tail, info.Size()-int64(len(tail))); readErr != nil {
		return errors.Join(err, readErr)
	}
	return fmt.Errorf("%w\nend of %s:\n%s", err, s.output.Name(), tail)
}

// Socket returns the path of the server's unix socket; it stays the same over restarts.
func (s *Server) Socket() string { return s.socket }

// Pid returns the id of the server's present process; Restart changes it.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child.process.Pid
}

// Stop ends the server, by SIGKILL if it takes longer than ten seconds or than ctx allows, removes its socket and
// releases its directory. Further calls do nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	if err := s.child.terminate(ctx); err != nil {
		return fmt.Errorf("embedded: stop %s: %w", s.name, err)
	}
	s.stopped = true
	if err := s.release(); err != nil {
		return fmt.Errorf("embedded: release %s: %w", s.name, err)
	}
	return nil
}

// Kill ends the server with SIGKILL, as a crash would, and returns once it is gone.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child.kill()
}

// Restart starts the server again on the same data and socket and returns once it is ready. A server that still runs
// is killed first.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("embedded: restart %s: already stopped", s.name)
	}
	if err := errors.Join(s.child.kill(), s.launch(ctx)); err != nil {
		return fmt.Errorf("embedded: restart %s: %w", s.name, err)
	}
	return nil
}

// Pause freezes the server, as a lost network would: connections stay open and are still accepted by the kernel, but
// nothing is answered until Resume.
func (s *Server) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on where it was.
func (s *Server) Resume() error { return s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child.signal(sig)
}
