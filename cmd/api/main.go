// Command api serves orders and payments that happen once. See README.md.
//
//	api            serve (the default)
//	api migrate    bring the database's schema to this build's, then end
//	api token      print a bearer token (dev only)
//	api forget     end what a message consumer is owed, when it is gone for good
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/uuid"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/dedup"
	"example.com/oncepay/internal/embedded"
	"example.com/oncepay/internal/metrics"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/redisdb"
	"example.com/oncepay/migrations"
)

func main() {
	redisdb.Quiet()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

// run is the whole program. What it writes to stdout is for the person who started it, logs go to stderr.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	cfg, err := config.Load(getenv)
	if err != nil {
		return err
	}
	command := "serve"
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	log := newLogger(cfg, stderr)
	switch command {
	case "serve":
		if len(args) > 0 {
			return fmt.Errorf("serve takes no arguments, got %q", args)
		}
		return serve(ctx, cfg, realWorld(), log, stdout)
	case "migrate":
		return migrateCommand(ctx, cfg, args, log, stdout)
	case "token":
		return tokenCommand(cfg, args, stdout)
	case "forget":
		return forgetCommand(ctx, cfg, args, log, stdout)
	default:
		return fmt.Errorf("unknown command %q; there are serve (the default), migrate, token and forget", command)
	}
}

// world is what the service takes from outside besides its configuration. Tests bring their own clock.
type world struct {
	now        func() time.Time
	newOrderNo func() (string, error)
}

func realWorld() world {
	return world{
		// The database keeps microseconds; a time that is cut before it is used equals itself after a round trip.
		now:        func() time.Time { return time.Now().UTC().Truncate(time.Microsecond) },
		newOrderNo: newOrderNo,
	}
}

// newOrderNo is a UUIDv7 without dashes: 32 characters that rise with time, so that the index grows at its end, and that no
// instance needs a worker id for.
func newOrderNo() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", id[:]), nil
}

// newLogger writes text for people in dev and JSON for machines in production.
func newLogger(cfg *config.Config, w io.Writer) *slog.Logger {
	if cfg.Production() {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// migrateCommand migrates and ends; -force repairs the record of a dirty schema after a person has looked at it.
func migrateCommand(ctx context.Context, cfg *config.Config, args []string, log *slog.Logger, stdout io.Writer) (err error) {
	flags := flag.NewFlagSet("migrate", flag.ContinueOnError)
	force := flags.Int("force", -1, "record this version as cleanly applied, after you have repaired the schema by hand")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dsn := cfg.MySQLDSN
	if cfg.EmbeddedMySQL() {
		server, startErr := embedded.StartMySQL(ctx, filepath.Join(cfg.DataDir, "mysql"), log)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, stopper(ctx, server)()) }()
		dsn = server.DSN(embeddedDatabase)
	}
	m, err := mysqldb.NewMigrator(ctx, dsn, migrations.FS, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if *force >= 0 {
		if err := m.Force(*force); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "version %d is recorded as applied\n", *force)
		return nil
	}
	if err := m.Up(ctx); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "the schema is current")
	return nil
}

// forgetCommand ends a consumer's subscriptions. Only a person knows that a consumer is gone and not merely missing on one instance.
func forgetCommand(ctx context.Context, cfg *config.Config, args []string, log *slog.Logger, stdout io.Writer) (err error) {
	flags := flag.NewFlagSet("forget", flag.ContinueOnError)
	consumer := flags.String("consumer", "", "name of the consumer, e.g. notify")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *consumer == "" || flags.NArg() > 0 {
		return errors.New("forget: usage: api forget -consumer notify")
	}
	s := &stores{}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.openMySQL(ctx, cfg, metrics.New(), log); err != nil {
		return err
	}
	known, err := dedup.Forget(ctx, s.db, *consumer)
	if err != nil {
		return err
	}
	if !known {
		return fmt.Errorf("forget: no consumer %q has a subscription", *consumer)
	}
	fmt.Fprintf(stdout, "%s is owed no messages any more\n", *consumer)
	return nil
}

// devTokenLife is how long `api token` and the start page's token last: a training day and some.
const devTokenLife = 24 * time.Hour

// tokenCommand prints a bearer token. Only in dev: in production an identity provider signs them.
func tokenCommand(cfg *config.Config, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("token", flag.ContinueOnError)
	user := flags.Int64("user", 0, "user id, a positive number")
	role := flags.String("role", "", `"ops" for an operator`)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if cfg.Production() {
		return errors.New("token: only in dev; in production your identity provider signs the tokens")
	}
	if *user < 1 || (*role != "" && *role != auth.RoleOps) || flags.NArg() > 0 {
		return errors.New("token: usage: api token -user 1001 [-role ops]")
	}
	signed, err := auth.Sign(cfg.JWTSecret, auth.Caller{UserID: *user, Ops: *role == auth.RoleOps}, time.Now().Add(devTokenLife))
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, signed)
	return nil
}
