package token

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// commandTimeout bounds one command with all that belongs to it: waiting for a connection, dialling, loading the
// script. A healthy Redis needs less than a millisecond.
const commandTimeout = 500 * time.Millisecond

// The verdicts of the scripts. Each word belongs to one script, so that no reply can pass for another's.
const (
	wordIssued  = "issued"
	wordClaimed = "claimed"
	wordInUse   = "in use"
	wordSpent   = "spent"
	wordNotOurs = "not ours"
)

// Each script works on KEYS[1] for the owner ARGV[1] and returns both with its verdict. ARGV[2] is the token's TTL in
// milliseconds.
//
// A token is a hash: key, its own Redis key, without which nothing is taken for a token; and once claimed owner and
// deadline, the end of the claim in Unix milliseconds of Redis's own clock. Giving a token back takes the last two
// away, which works in a full Redis too, as a write would not. Every script that writes leaves the full TTL behind.
var (
	issueScript = redis.NewScript(`
redis.call('HSET', KEYS[1], 'key', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {KEYS[1], ARGV[1], 'issued'}
`)

	// ARGV[3] is how long the claim lasts, in milliseconds. An owner's own claim is granted again: the same request came
	// twice, or the reply to the first try was lost.
	claimScript = redis.NewScript(`
local token = redis.call('HMGET', KEYS[1], 'key', 'owner', 'deadline')
local key, owner, deadline = token[1], token[2], token[3]
if key ~= KEYS[1] then
	return {KEYS[1], ARGV[1], 'spent'}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if owner and owner ~= ARGV[1] and now < tonumber(deadline) then
	return {KEYS[1], ARGV[1], 'in use'}
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'deadline', string.format('%.0f', now + ARGV[3]))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {KEYS[1], ARGV[1], 'claimed'}
`)

	settleScript = redis.NewScript(`
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then
	return {KEYS[1], ARGV[1], 'not ours'}
end
redis.call('DEL', KEYS[1])
return {KEYS[1], ARGV[1], 'settled'}
`)

	releaseScript = redis.NewScript(`
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then
	return {KEYS[1], ARGV[1], 'not ours'}
end
redis.call('HDEL', KEYS[1], 'owner', 'deadline')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {KEYS[1], ARGV[1], 'released'}
`)
)

// errForeignReply is a reply to somebody else's command: the connection is out of step.
var errForeignReply = errors.New("reply names another key or owner")

// run executes a script on key for owner and returns its verdict. A reply that does not name both is an error. After an
// error the effect is unknown.
func (s *Store) run(ctx context.Context, script *redis.Script, key, owner string, args ...any) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.timeout, commandTimeout))
	defer cancel()
	args = append([]any{owner}, args...)
	reply, err := script.Run(ctx, s.Client, []string{key}, args...).StringSlice() // EVALSHA, then EVAL if unknown
	if err != nil {
		return "", fmt.Errorf("token script: %w", err)
	}
	if len(reply) != 3 || reply[0] != key || reply[1] != owner {
		return "", fmt.Errorf("token script: %w", errForeignReply)
	}
	return reply[2], nil
}
