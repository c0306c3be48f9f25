package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/embedded"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/redisdb"
	"example.com/oncepay/migrations"
)

// embeddedDatabase is the embedded default's database.
const embeddedDatabase = "oncepay"

// stopTimeout bounds the orderly end of a private server; MariaDB needs about a second to flush.
const stopTimeout = 20 * time.Second

// stores are the connections of one process, and the private servers behind them if it has any.
type stores struct {
	db      *mysqldb.DB
	redis   redis.UniversalClient // for the guards
	streams redis.UniversalClient // for messages: its readers block, and must not hold the guards' connections
	mysqlAt string                // for people
	redisAt string
	closers []func() error
}

// openStores connects, starting the embedded default for what is not configured, and migrates.
func openStores(ctx context.Context, cfg *config.Config, m *metrics.Metrics, log *slog.Logger) (_ *stores, err error) {
	s := &stores{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.openMySQL(ctx, cfg, m, log); err != nil {
		return nil, err
	}
	if err := s.openRedis(ctx, cfg, log); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *stores) openMySQL(ctx context.Context, cfg *config.Config, m *metrics.Metrics, log *slog.Logger) error {
	dsn := cfg.MySQLDSN
	s.mysqlAt = "MYSQL_DSN"
	if cfg.EmbeddedMySQL() {
		server, err := embedded.StartMySQL(ctx, filepath.Join(cfg.DataDir, "mysql"), log)
		if err != nil {
			return err
		}
		s.closers = append(s.closers, stopper(ctx, server))
		dsn, s.mysqlAt = server.DSN(embeddedDatabase), "private server, mariadb -S "+server.Socket()+" "+embeddedDatabase
	}
	if err := migrate(ctx, dsn, cfg.MigrateOnStart, log); err != nil {
		return err
	}
	db, err := mysqldb.Open(ctx, dsn)
	if err != nil {
		return err
	}
	s.db = &mysqldb.DB{DB: db, Metrics: m}
	s.closers = append(s.closers, db.Close)
	return nil
}

func (s *stores) openRedis(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	addr, url := cfg.RedisAddr, cfg.RedisURL
	s.redisAt = "REDIS_ADDR / REDIS_URL"
	if cfg.EmbeddedRedis() {
		server, err := embedded.StartRedis(ctx, filepath.Join(cfg.DataDir, "redis"), log)
		if err != nil {
			return err
		}
		s.closers = append(s.closers, stopper(ctx, server))
		url, s.redisAt = server.URL(), "private server, redis-cli -s "+server.Socket()
	}
	for _, client := range []*redis.UniversalClient{&s.redis, &s.streams} {
		opened, err := redisdb.Open(addr, url)
		if err != nil {
			return err
		}
		*client = opened
		s.closers = append(s.closers, opened.Close)
	}
	return nil
}

// migrate brings the schema up, or only checks it.
func migrate(ctx context.Context, dsn string, up bool, log *slog.Logger) (err error) {
	m, err := mysqldb.NewMigrator(ctx, dsn, migrations.FS, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if !up {
		return m.Check()
	}
	return m.Up(ctx)
}

// close ends everything in the reverse order of its start.
func (s *stores) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// stopper ends a private server, also when ctx has ended, which is the usual reason for stopping.
func stopper(ctx context.Context, server interface {
	Stop(context.Context) error
}) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			return fmt.Errorf("stop the private server: %w", err)
		}
		return nil
	}
}
