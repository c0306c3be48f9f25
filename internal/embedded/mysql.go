package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// MySQL is a private MariaDB or MySQL 8.
type MySQL struct{ *Server }

// StartMySQL starts a server whose data, lock and log are in dir, created with mode 0700 where missing, and returns
// once it is ready. Data stays there between runs. ctx bounds the start only; the caller owes a Stop. A missing binary
// is a *NotInstalledError.
func StartMySQL(ctx context.Context, dir string, log *slog.Logger) (*MySQL, error) {
	return startMySQL(ctx, dir, log, searchPath())
}

func startMySQL(ctx context.Context, dir string, log *slog.Logger, path []string) (*MySQL, error) {
	m, err := openMySQL(ctx, dir, log, path)
	if err != nil {
		return nil, fmt.Errorf("embedded: start mysql: %w", err)
	}
	return m, nil
}

func openMySQL(ctx context.Context, dir string, log *slog.Logger, path []string) (*MySQL, error) {
	binary, err := find(path, "mariadbd", "mysqld")
	if err != nil {
		return nil, err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s, err := newServer(ctx, "mysql", dir, log)
	if err != nil {
		return nil, err
	}
	dataDir := filepath.Join(dir, "mysql")
	s.ready = mysqlReady
	s.command = mysqlCommand(binary, s.socket, dataDir)
	err = s.initData(ctx, binary, dataDir)
	if err == nil {
		err = s.launch(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.release())
	}
	return &MySQL{s}, nil
}

// mysqlCommand returns a command line that MariaDB and MySQL 8 both accept; options that start with "loose-" are
// ignored by the one that does not know them. innodb_flush_log_at_trx_commit keeps its default of 1: every commit is
// on disk before it is acknowledged.
func mysqlCommand(binary, socket, dataDir string) []string {
	return append([]string{
		binary,
		"--no-defaults", // the machine's my.cnf is for another server; must be the first option
		"--skip-networking",
		"--socket=" + socket,
		"--datadir=" + dataDir,
		"--skip-grant-tables", // who can enter the socket's directory is root; MariaDB then needs no system tables
		"--loose-mysqlx=OFF",  // MySQL's second protocol would open a socket of its own
		"--skip-log-bin",      // nobody replicates from here
		"--performance-schema=OFF",
		"--max-connections=500", // several instances of the API with their pools, plus tests
		"--character-set-server=utf8mb4",
		"--collation-server=utf8mb4_unicode_ci", // the default differs between servers, and MySQL's is not in MariaDB
		"--default-time-zone=+00:00",
	}, asUser()...)
}

// asUser returns the option without which the server refuses to run as root, as in a container.
func asUser() []string {
	if os.Geteuid() == 0 {
		return []string{"--user=root"}
	}
	return nil
}

// initData makes sure dataDir exists. A new one is made aside by a server that shuts down in order, and then renamed:
// MariaDB does start on an empty directory, but killed soon after it leaves a system tablespace whose first page was
// never written, which no later start accepts (measured on 10.11).
func (s *Server) initData(ctx context.Context, binary, dataDir string) error {
	if _, err := os.Stat(dataDir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Debian installs MariaDB under the name mysqld too, so the name does not tell.
	version, err := exec.CommandContext(ctx, binary, "--no-defaults", "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", binary, err)
	}
	mode := "--initialize-insecure" // MySQL 8: root without a password
	if strings.Contains(string(version), "MariaDB") {
		mode = "--bootstrap" // runs the SQL on its standard input, here none, and ends
	}
	fresh := dataDir + ".init"
	if err := os.RemoveAll(fresh); err != nil { // of an interrupted run
		return err
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	c, err := s.spawn(append([]string{binary, "--no-defaults", mode, "--datadir=" + fresh}, asUser()...))
	if err != nil {
		return err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("initialize data directory: %w", context.Cause(ctx)), c.kill())
	}
	if !c.state.Success() {
		return s.withLog(fmt.Errorf("initialize data directory: %v", c.state))
	}
	return os.Rename(fresh, dataDir)
}

// DSN returns the data source name of a database on this server in go-sql-driver's form, without parameters.
func (m *MySQL) DSN(database string) string {
	return fmt.Sprintf("root@unix(%s)/%s", m.socket, database)
}

// mysqlReady reads the greeting that a server sends by itself: a 4-byte header, then the protocol version.
func mysqlReady(conn net.Conn) error {
	greeting := make([]byte, 5)
	if _, err := io.ReadFull(conn, greeting); err != nil {
		return err
	}
	// 10 since MySQL 3.21; 255 marks an error packet instead.
	if greeting[4] != 10 {
		return fmt.Errorf("mysql greets with protocol %d", greeting[4])
	}
	return nil
}
