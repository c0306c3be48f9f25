package jobs

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/oncepay/internal/metrics"
)

// limit ends a wait for a signal that does not come.
const limit = 10 * time.Second

func runner(list ...Job) (*Runner, *bytes.Buffer) {
	logs := new(bytes.Buffer)
	r := NewRunner(slog.New(slog.NewTextHandler(logs, nil)), metrics.New())
	r.Jobs = list
	return r, logs
}

func failures(r *Runner, job string) float64 { return testutil.ToFloat64(r.Metrics.JobFailures(job)) }

// ringing is a job that tells of each round it begins.
func ringing(name string, every time.Duration, round func(ctx context.Context) error) (Job, <-chan struct{}) {
	began := make(chan struct{}, 100)
	return Job{Name: name, Every: every, Round: func(ctx context.Context) error {
		began <- struct{}{}
		return round(ctx)
	}}, began
}

func wait(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(limit):
		t.Fatalf("%s did not happen", what)
	}
}

func nothing(context.Context) error { return nil }

// start runs the jobs and returns a function that stops them and waits.
func start(t *testing.T, r *Runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	return func() {
		t.Helper()
		cancel()
		wait(t, ended, "the end of Run")
	}
}

// B64: a panic in a round ends neither the process nor the job, is counted, and its stack is in the log; an error likewise.
func TestARoundThatFailsIsCountedAndTheNextOneComes(t *testing.T) {
	bad, began := ringing("bad", time.Millisecond, func(context.Context) error { panic("torn") })
	r, logs := runner(bad)
	stop := start(t, r)
	for range 3 {
		wait(t, began, "a round after a panic")
	}
	stop()
	if got := failures(r, "bad"); got < 2 {
		t.Errorf("%v failures counted, want each panic", got)
	}
	for _, part := range []string{"job=bad", "panic=torn", "jobs_test.go"} {
		if !strings.Contains(logs.String(), part) {
			t.Errorf("the log does not tell %s: %s", part, logs)
		}
	}
	r.Once(t.Context(), Job{Name: "sad", Round: func(context.Context) error { return errors.New("no luck") }})
	if got := failures(r, "sad"); got != 1 || !strings.Contains(logs.String(), "no luck") {
		t.Errorf("%v failures counted, want 1: %s", got, logs)
	}
}

// Being stopped is no failure.
func TestARoundThatIsCutShortByTheStopIsNotCounted(t *testing.T) {
	r, _ := runner()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.Once(ctx, Job{Name: "cut", Round: func(ctx context.Context) error { return ctx.Err() }})
	if got := failures(r, "cut"); got != 0 {
		t.Errorf("%v failures counted, want none", got)
	}
}

// Each job begins at once; Wake starts the next round of all of them long before their time, and never blocks.
func TestWakeStartsEveryJobsNextRound(t *testing.T) {
	a, beganA := ringing("a", time.Hour, nothing)
	b, beganB := ringing("b", time.Hour, nothing)
	r, _ := runner(a, b)
	for range 10 {
		r.Wake() // nobody listens yet
	}
	stop := start(t, r)
	for range 3 {
		wait(t, beganA, "a round of a")
		wait(t, beganB, "a round of b")
		r.Wake()
	}
	stop()
	r.Wake() // nobody listens any more
}

// A Wake during a round is not lost: what it tells of may have come after the round looked.
func TestAWakeDuringARoundBringsAnother(t *testing.T) {
	release := make(chan struct{})
	job, began := ringing("slow", time.Hour, func(context.Context) error { <-release; return nil })
	r, _ := runner(job)
	stop := start(t, r)
	wait(t, began, "the first round")
	r.Wake()
	close(release)
	wait(t, began, "the round that was asked for")
	stop()
}

// Run returns only when the rounds in progress have ended, and a slow job holds no other up.
func TestStopWaitsForRoundsInProgress(t *testing.T) {
	release, finished := make(chan struct{}), make(chan struct{})
	slow, began := ringing("slow", time.Hour, func(ctx context.Context) error {
		<-ctx.Done()
		<-release
		close(finished)
		return nil
	})
	quick, beganQuick := ringing("quick", time.Millisecond, nothing)
	r, _ := runner(slow, quick)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	wait(t, began, "the slow round")
	for range 3 {
		wait(t, beganQuick, "a quick round beside it")
	}
	cancel()
	select {
	case <-ended:
		t.Error("Run returned while a round was in progress")
	default:
	}
	close(release)
	wait(t, ended, "the end of Run")
	wait(t, finished, "the slow round's end")
}
