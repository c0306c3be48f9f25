package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lockWait is how long a start waits for the directory's previous owner. An orderly stop takes up to stopWait, so a
// quick restart with Ctrl-C succeeds instead of failing.
const lockWait = stopWait + 2*time.Second

// lockFile is an flock on a file that holds the pids of its owner and of the owner's server.
//
// The server inherits the open file, and with it the lock: the lock is free only when both are gone. So a server that
// outlives its killed parent for a moment cannot meet its successor on the same data.
type lockFile struct{ *os.File }

// acquireLock takes the lock on the file name, waiting up to lockWait or until ctx ends.
func acquireLock(ctx context.Context, name string) (lockFile, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return lockFile{}, err
	}
	lock := lockFile{file}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	err = poll(ctx, nil, func() error {
		return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	})
	if errors.Is(err, syscall.EWOULDBLOCK) {
		owner, server := lock.pids()
		err = fmt.Errorf("%s is held by process %d (its server: process %d); stop it or use another directory: %w",
			name, owner, server, err)
	}
	if err == nil {
		err = lock.setPids(os.Getpid(), 0)
	}
	if err != nil {
		return lockFile{}, errors.Join(err, file.Close())
	}
	return lock, nil
}

// setPids records who holds the lock, for the error message of another process.
func (l lockFile) setPids(owner, server int) error {
	// Fixed width, so that one write replaces the old text entirely.
	_, err := l.WriteAt(fmt.Appendf(nil, "%10d %10d\n", owner, server), 0)
	return err
}

// pids returns what setPids recorded; zeros when the owner has not come to it yet.
func (l lockFile) pids() (owner, server int) {
	text := make([]byte, 22) // as written by setPids
	n, _ := l.ReadAt(text, 0)
	_, _ = fmt.Sscan(string(text[:n]), &owner, &server)
	return owner, server
}
