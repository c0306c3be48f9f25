package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// stopWait bounds an orderly stop. InnoDB's fast shutdown takes well under a second on a development data set; the
	// rest is for a loaded machine. SIGKILL afterwards loses no commit, it only costs a recovery at the next start.
	stopWait = 10 * time.Second

	// pollInterval is short against the 0.1 s in which MariaDB gets ready on an empty directory.
	pollInterval = 10 * time.Millisecond
)

// child is one running process; a restarted server is a new child.
type child struct {
	process *os.Process
	done    chan struct{}    // closed when the process has ended and been reaped
	state   *os.ProcessState // how it ended; valid once done is closed
	ending  atomic.Bool      // we asked it to end
}

// startChild starts cmd so that it dies with this process where the system can do that, in a process group of its own:
// Ctrl-C at the terminal must not reach the servers before our own orderly stop.
func startChild(cmd *exec.Cmd) (*child, error) {
	cmd.SysProcAttr = sysProcAttr()
	c := &child{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel delivers the parent-death signal when the forking *thread* ends, so that thread is kept for this
		// goroutine until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // its error says less than ProcessState
		c.state = cmd.ProcessState
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	c.process = cmd.Process
	return c, nil
}

// signal sends sig; that the process has ended already is not an error, since every caller then waits for done.
func (c *child) signal(sig syscall.Signal) error {
	if err := c.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", sig, c.process.Pid, err)
	}
	return nil
}

// kill ends the process with SIGKILL and waits until it is gone.
func (c *child) kill() error {
	c.ending.Store(true)
	if err := c.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-c.done
	return nil
}

// terminate ends the process in an orderly way, or by SIGKILL once stopWait or ctx is over.
func (c *child) terminate(ctx context.Context) error {
	c.ending.Store(true)
	// A paused process sees SIGTERM only after SIGCONT.
	if err := errors.Join(c.signal(syscall.SIGTERM), c.signal(syscall.SIGCONT)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stopWait)
	defer cancel()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return c.kill()
	}
}

// poll calls try until it returns nil. It gives up when ctx ends, with the last error of try, or when done is closed.
func poll(ctx context.Context, done <-chan struct{}, try func() error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-done:
			return errEnded
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// errEnded says that a process ended while somebody waited for it to become ready.
var errEnded = errors.New("process ended")
