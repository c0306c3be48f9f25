package token

import (
	"cmp"
	"context"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/redisdb"
)

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

// run executes a script on key for owner and returns its verdict. After an error the effect is unknown.
func (s *Store) run(ctx context.Context, script *redis.Script, key, owner string, args ...any) (string, error) {
	return redisdb.RunScript(ctx, s.Client, script, cmp.Or(s.timeout, redisdb.CommandTimeout), key, owner, args...)
}
