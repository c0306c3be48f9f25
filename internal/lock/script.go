package lock

import (
	"cmp"
	"context"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/redisdb"
)

// redisKey is where the lock on a business key lives. The braces are the hash tag of a cluster. Different keys stay
// different: what is put around them is fixed.
func redisKey(key string) string { return "oncepay:lock:{" + key + "}" }

// The verdicts of the scripts. Each word belongs to one script, so that no reply can pass for another's.
const (
	wordAcquired = "acquired"
	wordRenewed  = "renewed"
	wordGone     = "gone" // release found the lock expired, deleted or another's
)

// Each script works on KEYS[1] for the owner ARGV[1] and returns both with its verdict. The value stored names them too,
// so that nothing that landed under a wrong key can be taken for a lock.
var (
	// A lock of our own counts as acquired: an earlier try took it and its reply was lost or late.
	acquireScript = redis.NewScript(`
local value = KEYS[1] .. ' ' .. ARGV[1]
if redis.call('SET', KEYS[1], value, 'NX', 'PX', ARGV[2]) then
	return {KEYS[1], ARGV[1], 'acquired'}
end
if redis.call('GET', KEYS[1]) == value then
	redis.call('PEXPIRE', KEYS[1], ARGV[2])
	return {KEYS[1], ARGV[1], 'acquired'}
end
return {KEYS[1], ARGV[1], 'busy'}
`)

	renewScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) == KEYS[1] .. ' ' .. ARGV[1] then
	redis.call('PEXPIRE', KEYS[1], ARGV[2])
	return {KEYS[1], ARGV[1], 'renewed'}
end
return {KEYS[1], ARGV[1], 'refused'}
`)

	releaseScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) == KEYS[1] .. ' ' .. ARGV[1] then
	redis.call('DEL', KEYS[1])
	return {KEYS[1], ARGV[1], 'released'}
end
return {KEYS[1], ARGV[1], 'gone'}
`)
)

// run executes a script for the lease and returns its verdict. After an error the effect is unknown.
func (l *Redis) run(ctx context.Context, script *redis.Script, ls *lease, args ...any) (string, error) {
	return redisdb.RunScript(ctx, l.Client, script, cmp.Or(l.timeout, redisdb.CommandTimeout), ls.key, ls.owner, args...)
}
