package mysqldb

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratemysql "github.com/golang-migrate/migrate/v4/database/mysql"
	"github.com/golang-migrate/migrate/v4/source/iofs"
)

// migrateLockSeconds is how long an instance waits for another one that is migrating: longer than any of our DDL takes
// on a table of ten million rows.
const migrateLockSeconds = 300

// Migrator brings a database to the schema of this build, one migrator at a time.
type Migrator struct {
	conn    *sql.Conn
	migrate *migrate.Migrate
	files   fs.FS
	log     *slog.Logger
	close   func() error
}

// NewMigrator creates the database if it is missing, takes the migration lock (waiting for another instance's migrator)
// and reads the schema's state. Close releases all.
func NewMigrator(ctx context.Context, dsn string, files fs.FS, log *slog.Logger) (*Migrator, error) {
	cfg, err := forced(dsn)
	if err != nil {
		return nil, err
	}
	cfg.ReadTimeout, cfg.WriteTimeout = 0, 0 // DDL takes as long as it takes
	if err := createDatabase(ctx, cfg); err != nil {
		return nil, err
	}
	cfg.MultiStatements = true // golang-migrate asks for it; only this connection has it
	base, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	db := sql.OpenDB(base)
	conn, err := db.Conn(ctx)
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("migrate: connect: %w", err)
	}
	m := &Migrator{conn: conn, files: files, log: log, close: db.Close}
	if err := m.open(ctx, cfg.DBName); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Migrator) open(ctx context.Context, dbName string) error {
	name := fmt.Sprintf("oncepay-migrate-%x", sha256.Sum256([]byte(dbName)))[:64] // MySQL's limit for a lock's name
	var got sql.NullInt64
	if err := m.conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", name, migrateLockSeconds).Scan(&got); err != nil {
		return fmt.Errorf("migrate: lock: %w", err)
	}
	if got.Int64 != 1 {
		return fmt.Errorf("migrate: another instance has been migrating %s for %d s; look what it is doing before you start more", dbName, migrateLockSeconds)
	}
	driver, err := migratemysql.WithConnection(ctx, m.conn, &migratemysql.Config{DatabaseName: dbName, NoLock: true})
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	source, err := iofs.New(m.files, ".")
	if err != nil {
		return fmt.Errorf("migrate: read files: %w", err)
	}
	m.migrate, err = migrate.NewWithInstance("iofs", source, "mysql", driver)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// Close releases the lock and the connection.
func (m *Migrator) Close() error { return errors.Join(m.conn.Close(), m.close()) }

// Up applies what is missing, file by file. It refuses a dirty schema, never forcing it, and reports duplicate rows
// before it builds a unique index over them.
func (m *Migrator) Up(ctx context.Context) error {
	files, err := m.versions()
	if err != nil {
		return err
	}
	current, err := m.current()
	if err != nil {
		return err
	}
	if last := files[len(files)-1]; current > last.version {
		return fmt.Errorf("migrate: the schema is at version %d, newer than this build's %d; start a newer build", current, last.version)
	}
	for _, f := range files {
		if f.version <= current {
			continue
		}
		if err := m.refuseDuplicates(ctx, f.name); err != nil {
			return err
		}
		if err := m.migrate.Steps(1); err != nil {
			return fmt.Errorf("migrate: %s failed, the schema is now marked dirty: %w\n%s", f.name, err, dirtyAdvice(f.version))
		}
		m.log.Info("migrated", "file", f.name)
	}
	return nil
}

// Check returns an error unless the schema is the one of this build.
func (m *Migrator) Check() error {
	files, err := m.versions()
	if err != nil {
		return err
	}
	current, err := m.current()
	if err != nil {
		return err
	}
	if want := files[len(files)-1].version; current != want {
		return fmt.Errorf("migrate: the schema is at version %d, this build needs %d; run `api migrate` first (MIGRATE_ON_START is false)", current, want)
	}
	return nil
}

// Force records a version as cleanly applied (0: none) after a person has repaired the schema by hand.
func (m *Migrator) Force(version int) error {
	if version == 0 {
		version = database.NilVersion
	}
	return m.migrate.Force(version)
}

// current returns the schema's version, 0 for an empty database.
func (m *Migrator) current() (uint, error) {
	version, dirty, err := m.migrate.Version()
	if errors.Is(err, migrate.ErrNilVersion) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("migrate: read version: %w", err)
	}
	if dirty {
		return 0, fmt.Errorf("migrate: the schema is dirty: version %d was begun and not finished.\n%s", version, dirtyAdvice(version))
	}
	return version, nil
}

func dirtyAdvice(version uint) string {
	return fmt.Sprintf(`What to do: compare the schema with migrations/%06d_*.up.sql. If its statement took effect, run "api migrate -force %d";
if it did not, run "api migrate -force %d" (0 means: nothing is applied). Then start again. Nothing is forced automatically.`,
		version, version, version-1)
}

type migrationFile struct {
	version uint
	name    string
}

func (m *Migrator) versions() ([]migrationFile, error) {
	names, err := fs.Glob(m.files, "*.up.sql")
	if err != nil {
		return nil, fmt.Errorf("migrate: list files: %w", err)
	}
	if len(names) == 0 {
		return nil, errors.New("migrate: there are no migration files")
	}
	slices.Sort(names)
	files := make([]migrationFile, len(names))
	for i, name := range names {
		digits, _, _ := strings.Cut(name, "_")
		version, err := strconv.ParseUint(digits, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("migrate: file %s has no version: %w", name, err)
		}
		files[i] = migrationFile{uint(version), name}
	}
	return files, nil
}

// refuseDuplicates runs the query a file names in "-- duplicates: SELECT ...", before anything is marked dirty.
func (m *Migrator) refuseDuplicates(ctx context.Context, name string) error {
	text, err := fs.ReadFile(m.files, name)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	_, rest, found := strings.Cut(string(text), "-- duplicates: ")
	if !found {
		return nil
	}
	query, _, _ := strings.Cut(rest, "\n")
	rows, err := m.conn.QueryContext(ctx, query)
	if err != nil {
		return fmt.Errorf("migrate: %s: look for duplicates: %w", name, err)
	}
	defer rows.Close()
	var found10 []string
	for rows.Next() && len(found10) < 10 { // ten show the pattern; the query shows the rest
		var value string
		var count int64
		if err := rows.Scan(&value, &count); err != nil {
			return fmt.Errorf("migrate: %s: look for duplicates: %w", name, err)
		}
		found10 = append(found10, fmt.Sprintf("%s (%d rows)", value, count))
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("migrate: %s: look for duplicates: %w", name, err)
	}
	if len(found10) > 0 {
		return fmt.Errorf("migrate: %s not begun, it would fail on duplicate rows: %s; find all with: %s", name, strings.Join(found10, ", "), query)
	}
	return nil
}

// createDatabase makes the DSN's database when it is missing.
func createDatabase(ctx context.Context, cfg *mysql.Config) error {
	server := cfg.Clone()
	server.DBName = ""
	base, err := mysql.NewConnector(server)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	db := sql.OpenDB(base)
	defer db.Close()
	var exists int
	err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", cfg.DBName).Scan(&exists)
	if err != nil {
		return fmt.Errorf("migrate: connect: %w", err)
	}
	if exists > 0 {
		return nil
	}
	quoted := "`" + strings.ReplaceAll(cfg.DBName, "`", "``") + "`"
	if _, err := db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS "+quoted+" DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"); err != nil {
		return fmt.Errorf("migrate: create database %s: %w", cfg.DBName, err)
	}
	return nil
}
