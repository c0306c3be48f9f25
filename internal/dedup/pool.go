package dedup

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// width is how many messages of one consumer a round works on at once: a receiver that hangs for as long as a call may take
	// must not make one message wait for the other.
	width = 16
	// restFor is how long the messages of a consumer rest after a round in which none went through: a receiver that is down is then
	// asked by a few of them every half minute, and the others' tries are not used up.
	restFor = 30 * time.Second
)

// each works on n messages of a consumer, width at a time, and returns how many it began. It begins no more when the round is over, or
// when the consumer is failing: of the first width not one has gone through.
func (s *Service) each(round context.Context, n int, work func(i int) (through bool, err error)) (begun int, failing bool, err error) {
	var (
		mu              sync.Mutex
		workers         sync.WaitGroup
		through, failed int
		errs            []error
	)
	next := func() (i int, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		failing = failing || through == 0 && failed >= width
		if begun == n || failing || round.Err() != nil {
			return 0, false
		}
		begun++
		return begun - 1, true
	}
	done := func(ok bool, err error) {
		mu.Lock()
		defer mu.Unlock()
		if ok {
			through++
		} else {
			failed++
		}
		errs = append(errs, err)
	}
	for range min(width, n) {
		workers.Go(func() {
			for i, ok := next(); ok; i, ok = next() {
				ok := false
				err := s.safely(func() (err error) { ok, err = work(i); return err })
				done(ok, err)
			}
		})
	}
	workers.Wait()
	return begun, failing, errors.Join(errs...)
}
