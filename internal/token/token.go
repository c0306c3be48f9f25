// Package token holds one-time submit tokens in Redis. A token lets one submit of a form through at a time: it is
// claimed by a request, used up by success, given back by a refusal, and freed by its lease after a crash, so it is
// never stranded. Like every guard in Redis it decides nothing: when Redis does not work, the claim is granted and the
// data layer's unique index stands alone.
package token

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/redisdb"
)

// ErrSpent means there is no such token: used up, expired or never issued, which nobody can tell apart. The caller first
// looks whether its own result exists, and only then answers 409.
var ErrSpent = errors.New("submit token is spent or unknown")

// retryAfter is the smallest Retry-After there is; most claims are done in milliseconds.
const retryAfter = time.Second

// Token is one permission to submit.
type Token struct {
	Value     string // 32 lower-case hexadecimal digits
	Scene     string
	ExpiresAt time.Time // UTC; submitting renews the token's life
}

// Store issues and claims tokens. All exported fields but Disabled are required; a Store must not be copied.
type Store struct {
	Client     redis.UniversalClient
	TTL        time.Duration // life of a token, renewed by every claim and release
	ClaimLease time.Duration // when a claim that was never settled or released ends; beyond any request's deadline
	Wait       time.Duration // how long a request waits for a token that another one has claimed
	Metrics    *metrics.Metrics
	Log        *slog.Logger
	Now        func() time.Time
	Disabled   bool // DISABLE_GUARDS=token: every claim is granted; issuing still works

	timeout time.Duration // of one command; 0 is redisdb.CommandTimeout. Tests with crowds on a slow machine set more
	outage  redisdb.Outage
}

// Issue makes a token for a user. It returns Invalid "scene_unknown", or Unavailable "token_store_unavailable" when
// Redis does not work.
func (s *Store) Issue(ctx context.Context, scene string, user int64) (Token, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return Token{}, fmt.Errorf("token: issue: %w", err)
	}
	t := Token{Value: hex.EncodeToString(id[:]), Scene: scene, ExpiresAt: s.Now().UTC().Add(s.TTL)}
	key, err := redisKey(scene, user, t.Value)
	if err != nil {
		return Token{}, err
	}
	const nobody = "" // owns the new token
	word, err := s.run(ctx, issueScript, key, nobody, s.TTL.Milliseconds())
	if err == nil && word != wordIssued {
		err = fmt.Errorf("verdict %q", word)
	}
	if err != nil {
		return Token{}, apperr.New(apperr.Unavailable, "token_store_unavailable", "Submit tokens cannot be issued at the moment.").
			At(apperr.LayerToken).After(retryAfter).Wrap(fmt.Errorf("token: issue: %w", err))
	}
	return t, nil
}

// Claim is one request's hold on a token. Exactly one of Settle and Release ends it. Both do nothing to a nil Claim,
// that of a request without a token.
type Claim struct {
	store             *Store // nil when the guard is disabled: there is nothing to end
	scene, key, owner string
}

// Claim takes a user's token for owner, which names the request: the same request sent again, to any instance, must
// have the same owner, and no other request may have it. A token claimed by another owner is waited for.
//
// It returns ErrSpent for a token that does not exist, InProgress "token_in_use" when the other owner kept it for all
// of Wait (plus one command's timeout at most), Invalid "submit_token_invalid" or "scene_unknown" for what can be no
// token, or ctx's error. When Redis does not work the claim is granted.
func (s *Store) Claim(ctx context.Context, scene string, user int64, value, owner string) (*Claim, error) {
	key, err := redisKey(scene, user, value)
	if err != nil {
		return nil, err
	}
	if s.Disabled {
		return &Claim{}, nil
	}
	c := &Claim{store: s, scene: scene, key: key, owner: owner}
	outcome, err := c.wait(ctx)
	if outcome != "" {
		s.count(scene, outcome)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// wait tries to claim until there is a decision. The outcome is what the guard did; it is empty, with ctx's error, when
// ctx ended.
func (c *Claim) wait(ctx context.Context) (outcome string, err error) {
	s := c.store
	start := time.Now()
	outcome = metrics.Passed
	for pause := redisdb.FirstPause; ; pause = redisdb.NextPause(pause) {
		word, err := s.run(ctx, claimScript, c.key, c.owner, s.TTL.Milliseconds(), s.ClaimLease.Milliseconds())
		switch {
		case err != nil && redisdb.Ended(ctx) != nil:
			c.Release(ctx) // the command may have reached Redis; should it be late there, its lease frees the token
			return "", fmt.Errorf("token: claim for %s: %w", c.scene, redisdb.Ended(ctx))
		case err != nil:
			// The claim may have reached Redis, so the caller's Settle or Release is tried there as for any other.
			s.outage.Failed(ctx, s.Log, apperr.LayerToken, "claim", err)
			return metrics.Degraded, nil
		}
		s.outage.Works(ctx, s.Log, apperr.LayerToken)
		switch word {
		case wordClaimed:
			return outcome, nil
		case wordSpent:
			return metrics.Blocked, ErrSpent
		}
		outcome = metrics.Waited
		left := s.Wait - time.Since(start)
		if left <= 0 {
			return metrics.Blocked, apperr.New(apperr.InProgress, "token_in_use", "Another request is using this submit token. Send the request again.").
				At(apperr.LayerToken).After(retryAfter)
		}
		if err := redisdb.Sleep(ctx, min(left, redisdb.Jitter(pause))); err != nil {
			return "", fmt.Errorf("token: wait for %s: %w", c.scene, err)
		}
	}
}

// Settle uses the token up: the request succeeded. It works even if ctx has ended. A failure is logged and counted, not
// returned: the token then works again after the claim's lease, and the data layer answers its use with the first
// result.
func (c *Claim) Settle(ctx context.Context) { c.end(ctx, "settle", settleScript) }

// Release gives the token back with a full TTL: the request was refused or failed, and the user may submit again. It
// works even if ctx has ended. A failure is logged and counted, not returned: the claim's lease then frees the token.
func (c *Claim) Release(ctx context.Context) { c.end(ctx, "release", releaseScript) }

func (c *Claim) end(ctx context.Context, doing string, script *redis.Script) {
	if c == nil || c.store == nil {
		return
	}
	s := c.store
	word, err := s.run(context.WithoutCancel(ctx), script, c.key, c.owner, s.TTL.Milliseconds())
	switch {
	case err != nil:
		s.count(c.scene, metrics.Degraded)
		s.outage.Failed(ctx, s.Log, apperr.LayerToken, doing, err)
	case word == wordNotOurs:
		// The same request's twin has ended it, or the lease has and another request goes on with the token.
		s.Log.InfoContext(ctx, "submit token is not claimed by this request any more", "doing", doing, "key", c.key)
	}
}

func (s *Store) count(scene, outcome string) { s.Metrics.GuardHit(apperr.LayerToken, scene, outcome) }
