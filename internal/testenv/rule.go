package testenv

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// Match tells whether a rule means this command. It runs under the proxy's lock,
// so it must not call the proxy.
type Match func(cmd string) bool

// Any matches every command, those of the driver's own connection setup too.
func Any() Match {
	return func(string) bool { return true }
}

// Contains matches commands with sub anywhere in the text, case-sensitively.
func Contains(sub string) Match {
	return func(cmd string) bool { return strings.Contains(cmd, sub) }
}

// Prefix matches commands that begin with prefix. The first word of prefix is
// compared without regard to case, the rest exactly, because keys have case:
// Prefix("commit"), Prefix("SET lock:"), and Prefix("EVAL") for EVALSHA too.
func Prefix(prefix string) Match {
	verb := len(prefix)
	if space := strings.IndexByte(prefix, ' '); space >= 0 {
		verb = space
	}
	return func(cmd string) bool {
		return len(cmd) >= len(prefix) &&
			strings.EqualFold(cmd[:verb], prefix[:verb]) &&
			cmd[verb:len(prefix)] == prefix[verb:]
	}
}

// Action is what a rule does to a command. All actions keep the order of a
// connection: what is behind a delayed or held command waits with it.
type Action struct {
	cut     bool                        // do not forward; cut
	swallow bool                        // drop the reply; cut
	before  func(context.Context) error // the request waits for this
	after   func(context.Context) error // the complete reply waits for this
}

// CutBefore cuts the connection before the command: the server never sees it.
// Replies to earlier commands of the same pipeline are delivered first.
func CutBefore() Action { return Action{cut: true} }

// SwallowReply lets the server carry out the command, then cuts the connection
// instead of delivering the reply. Commands behind it in the same pipeline never
// reach the server.
func SwallowReply() Action { return Action{swallow: true} }

// Delay holds the reply for d, counted from its arrival at the proxy.
func Delay(d time.Duration) Action {
	return Action{after: func(ctx context.Context) error { return pause(ctx, d) }}
}

// Jitter holds each reply for a random time below limit, which must be positive.
func Jitter(limit time.Duration) Action {
	return Action{after: func(ctx context.Context) error { return pause(ctx, rand.N(limit)) }}
}

// DelayRequest holds the command for d before the server gets it.
func DelayRequest(d time.Duration) Action {
	return Action{before: func(ctx context.Context) error { return pause(ctx, d) }}
}

// Hold keeps the command at the gate; the server gets it once the gate opens,
// even if the client has hung up meanwhile, as with a packet late in the network.
func Hold(g *Gate) Action { return Action{before: g.Enter} }

// HoldReply lets the server carry out the command and keeps the reply at the gate:
// once somebody has entered, the command is done.
func HoldReply(g *Gate) Action { return Action{after: g.Enter} }

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Rule is one fault set up with Proxy.On.
type Rule struct {
	proxy  *Proxy
	match  Match
	action Action
	left   int // times left, negative without end; guarded by proxy.mu
	hits   counter
}

// Hits is the number of commands the rule has been applied to. A command counts
// when it arrives, before the action.
func (r *Rule) Hits() int { return r.hits.value() }

// Wait blocks until the rule has been hit n times in all. It fails the test if
// that does not happen, so call it from the test's goroutine.
func (r *Rule) Wait(t testing.TB, n int) {
	t.Helper()
	r.hits.wait(t, n, "hits of the rule")
}

// Stop ends the rule for commands to come; those it holds stay held.
func (r *Rule) Stop() {
	r.proxy.mu.Lock()
	defer r.proxy.mu.Unlock()
	r.left = 0
}

// take reports whether the rule applies to cmd, and uses it up once if so. The
// caller holds proxy.mu.
func (r *Rule) take(cmd string) bool {
	if r.left == 0 || !r.match(cmd) {
		return false
	}
	if r.left > 0 {
		r.left--
	}
	r.hits.add()
	return true
}
