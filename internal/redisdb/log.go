package redisdb

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Quiet stops go-redis from printing to stderr on its own. Its errors come back as values and are logged once, by whoever
// decides what they mean. The setting is the library's global one, so a program makes it once, in main.
func Quiet() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
