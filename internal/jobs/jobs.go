// Package jobs runs work that comes round by the clock. Jobs run on every instance; each piece of work is claimed in the
// database, so that one instance does it.
package jobs

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"example.com/oncepay/internal/metrics"
)

// Job is one kind of work.
type Job struct {
	Name  string
	Every time.Duration // pause between rounds
	Round func(ctx context.Context) error
}

// Runner runs jobs until it is stopped.
type Runner struct {
	Jobs    []Job
	Log     *slog.Logger
	Metrics *metrics.Metrics

	wake chan struct{}
}

// NewRunner makes a runner.
func NewRunner(log *slog.Logger, m *metrics.Metrics) *Runner {
	return &Runner{Log: log, Metrics: m, wake: make(chan struct{}, 1)}
}

// Wake starts the next round of every job now. It never blocks.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // somebody has woken it already
	}
}

// Run runs every job's rounds until ctx ends, then returns when the rounds in progress have.
func (r *Runner) Run(ctx context.Context) {
	var running sync.WaitGroup
	bells := make([]chan struct{}, len(r.Jobs))
	for i, job := range r.Jobs {
		bells[i] = make(chan struct{}, 1)
		running.Go(func() { r.loop(ctx, job, bells[i]) })
	}
	for {
		select {
		case <-ctx.Done():
			running.Wait()
			return
		case <-r.wake:
			for _, bell := range bells {
				select {
				case bell <- struct{}{}:
				default:
				}
			}
		}
	}
}

func (r *Runner) loop(ctx context.Context, job Job, bell <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-bell:
		}
		r.Once(ctx, job)
		timer.Reset(job.Every)
	}
}

// Once runs one round. A failure is logged and counted, a panic too: the next round comes anyway, and no job takes the process
// with it.
func (r *Runner) Once(ctx context.Context, job Job) {
	defer func() {
		if v := recover(); v != nil {
			r.Metrics.JobFailed(job.Name)
			r.Log.ErrorContext(ctx, "job panicked", "job", job.Name, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		}
	}()
	if err := job.Round(ctx); err != nil && ctx.Err() == nil {
		r.Metrics.JobFailed(job.Name)
		r.Log.ErrorContext(ctx, "job failed; its next round comes anyway", "job", job.Name, "error", err)
	}
}
