package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// NotInstalledError says that no binary of a server was found. Its text is meant for the person at the terminal: it
// names every way to go on.
type NotInstalledError struct {
	Binaries []string // names looked for, any of which would do
	Path     []string // directories looked in
}

func (e *NotInstalledError) Error() string {
	return fmt.Sprintf(`%s not found in %s. Three ways to go on:
  1. install the servers: make setup
     (Debian/Ubuntu: apt-get install mariadb-server-core redis-server; macOS: brew install mariadb redis)
  2. use running servers: set MYSQL_DSN and REDIS_ADDR
  3. use servers in containers:
     docker run -d -p 127.0.0.1:3306:3306 -e MYSQL_ALLOW_EMPTY_PASSWORD=1 mysql:8.4 && docker run -d -p 127.0.0.1:6379:6379 redis:7
     and set MYSQL_DSN='root@tcp(127.0.0.1:3306)/oncepay' REDIS_ADDR=127.0.0.1:6379`,
		strings.Join(e.Binaries, " or "), strings.Join(e.Path, ":"))
}

// searchPath returns the directories of PATH, then those where packages put servers although an ordinary user's PATH
// lacks them: sbin on Debian, and Homebrew's own directories for formulas it does not link.
func searchPath() []string {
	return append(filepath.SplitList(os.Getenv("PATH")),
		"/usr/sbin",
		"/usr/local/sbin",
		"/opt/homebrew/opt/mariadb/bin", // Apple silicon
		"/opt/homebrew/opt/mysql/bin",
		"/opt/homebrew/opt/redis/bin",
		"/usr/local/opt/mariadb/bin", // Intel
		"/usr/local/opt/mysql/bin",
		"/usr/local/opt/redis/bin",
	)
}

// find returns the first of the binaries, in order of preference, that exists in path, or a *NotInstalledError.
func find(path []string, binaries ...string) (string, error) {
	for _, binary := range binaries {
		for _, dir := range path {
			// A relative entry, such as ".", would run whatever lies in the current directory.
			if !filepath.IsAbs(dir) {
				continue
			}
			file := filepath.Join(dir, binary)
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", &NotInstalledError{Binaries: binaries, Path: path}
}
