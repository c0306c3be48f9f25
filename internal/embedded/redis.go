package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
)

// Redis is a private Redis server. It keeps nothing on disk: a restart empties it.
type Redis struct{ *Server }

// StartRedis starts a Redis whose lock and log are in dir, and returns once it is ready. ctx bounds the start only; the
// caller owes a Stop. A missing binary is a *NotInstalledError.
func StartRedis(ctx context.Context, dir string, log *slog.Logger) (*Redis, error) {
	return startRedis(ctx, dir, log, searchPath())
}

func startRedis(ctx context.Context, dir string, log *slog.Logger, path []string) (*Redis, error) {
	r, err := openRedis(ctx, dir, log, path)
	if err != nil {
		return nil, fmt.Errorf("embedded: start redis: %w", err)
	}
	return r, nil
}

func openRedis(ctx context.Context, dir string, log *slog.Logger, path []string) (*Redis, error) {
	binary, err := find(path, "redis-server", "valkey-server")
	if err != nil {
		return nil, err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s, err := newServer(ctx, "redis", dir, log)
	if err != nil {
		return nil, err
	}
	s.ready = redisReady
	s.command = []string{
		binary,
		"--port", "0", // no TCP
		"--unixsocket", s.socket,
		"--dir", dir,
		"--save", "", // no snapshots
		"--appendonly", "no",
		"--maxmemory-policy", "noeviction", // an evicted lock or token would be a silent loss; a refused write is seen
		"--daemonize", "no",
	}
	if err := s.launch(ctx); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return &Redis{s}, nil
}

// URL returns the address of database 0 in the form that go-redis's ParseURL takes.
func (r *Redis) URL() string { return "unix://" + r.socket + "?db=0" }

func redisReady(conn net.Conn) error {
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return err
	}
	const pong = "+PONG\r\n"
	reply := make([]byte, len(pong))
	if _, err := io.ReadFull(conn, reply); err != nil {
		return err
	}
	if string(reply) != pong {
		return fmt.Errorf("redis answers PING with %q", reply)
	}
	return nil
}
