#!/usr/bin/env bash
# Makes sure that what `make run` and `make test` need is on this machine, and installs what is missing.
#
#   scripts/setup.sh            Go, a MySQL-compatible server and a Redis
#   scripts/setup.sh --tests    also a C compiler, which `go test -race` needs, and a Chromium or Chrome for the pages' tests
#
# Environment:
#   MYSQL_DSN or TEST_MYSQL_DSN                   a server elsewhere is used, so none is needed here
#   REDIS_ADDR, REDIS_URL or TEST_REDIS_ADDR      the same for Redis
#   NO_INSTALL=1                                  install nothing, say what to do instead
#
# Exit status: 0 all is there; 1 an installation failed, or Go is missing or too old; 2 wrong usage;
# 3 something is missing and was not installed.
#
# Keeps to bash 3.2, the one of macOS.
set -euo pipefail

# Where packages put servers although an ordinary user's PATH lacks it: the list of internal/embedded/find.go.
readonly server_path="$PATH:/usr/sbin:/usr/local/sbin\
:/opt/homebrew/opt/mariadb/bin:/opt/homebrew/opt/mysql/bin:/opt/homebrew/opt/redis/bin\
:/usr/local/opt/mariadb/bin:/usr/local/opt/mysql/bin:/usr/local/opt/redis/bin"

say() { printf 'setup: %s\n' "$*" >&2; }

# die STATUS MESSAGE...
die() {
  local status=$1
  shift
  say "$@"
  exit "$status"
}

# has NAME...: one of the commands exists.
has() {
  local name
  for name in "$@"; do
    if (PATH=$server_path && command -v "$name") >/dev/null 2>&1; then return 0; fi
  done
  return 1
}

has_mysql() { [ -n "${MYSQL_DSN:-}${TEST_MYSQL_DSN:-}" ] || has mariadbd mysqld; }
has_redis() { [ -n "${REDIS_ADDR:-}${REDIS_URL:-}${TEST_REDIS_ADDR:-}" ] || has redis-server valkey-server; }

# has_cc: the compiler that Go would call compiles against the C library; on Debian a bare gcc lacks the headers.
has_cc() {
  local compiler
  compiler=$(go env CC)
  # shellcheck disable=SC2086 # CC may carry options
  echo '#include <stdlib.h>' | $compiler -E - >/dev/null 2>&1
}

# has_browser: the names under which github.com/chromedp/chromedp, which drives it, looks for one.
has_browser() {
  has headless-shell chromium chromium-browser google-chrome google-chrome-stable google-chrome-beta chrome ||
    [ -x "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" ] || [ -x "/Applications/Chromium.app/Contents/MacOS/Chromium" ]
}

# at_least HAVE WANT: compares dotted numbers; a missing part counts as 0. (macOS's sort has no -V everywhere.)
at_least() {
  awk -v have="$1" -v want="$2" 'BEGIN {
    split(have, h, "."); split(want, w, ".")
    for (i = 1; i <= 3; i++) if (h[i] + 0 != w[i] + 0) exit !(h[i] + 0 > w[i] + 0)
  }'
}

# check_go: go is there and has the version of go.mod. Not installed from here: distributions package older ones, and
# since 1.21 go fetches the right toolchain by itself, unless GOTOOLCHAIN=local forbids it.
check_go() {
  local want have
  want=$(awk '$1 == "go" { print $2; exit }' go.mod)
  local advice="Go $want or newer is needed: https://go.dev/doc/install"
  command -v go >/dev/null 2>&1 || die 1 "go not found. $advice"
  have=$(go env GOVERSION) || die 1 "go refuses go.mod, see above. $advice"
  have=${have##*go}      # "go1.26.1", "devel go1.27-..."
  have=${have%%[!0-9.]*} # "1.27rc1", "1.26.1-X:..."
  at_least "$have" "$want" || die 1 "found Go $have. $advice"
}

# missing MYSQL REDIS CC BROWSER: prints which of these packages, named by their caller, stand for something missing.
missing() {
  local packages=""
  has_mysql || packages="$packages $1"
  has_redis || packages="$packages $2"
  if [ "$for_tests" = yes ] && ! has_cc; then packages="$packages $3"; fi
  if [ "$for_tests" = yes ] && ! has_browser; then packages="$packages $4"; fi
  echo "${packages# }"
}

# stop_with_advice COMMAND: says how to go on without this script installing anything.
stop_with_advice() {
  cat >&2 <<ADVICE
setup: missing: $(missing "[MySQL-compatible server: mariadbd or mysqld]" "[Redis: redis-server]" "[C compiler]" "[Chromium or Chrome]")
three ways to go on:
  1. install it:                     $1
  2. use servers that run elsewhere: set MYSQL_DSN and REDIS_ADDR (the tests need 1: they kill and pause servers of their own)
  3. use servers in containers:
       docker run -d -p 127.0.0.1:3306:3306 -e MYSQL_ALLOW_EMPTY_PASSWORD=1 mysql:8.4
       docker run -d -p 127.0.0.1:6379:6379 redis:7
     with MYSQL_DSN='root@tcp(127.0.0.1:3306)/oncepay' REDIS_ADDR=127.0.0.1:6379
ADVICE
  exit 3
}

# served_name PACKAGE: the package's name on this release. Before Debian 12 and Ubuntu 24.04 MariaDB's binaries are in a package
# with the version in its name. Ubuntu has Chromium under another name.
served_name() {
  local versioned
  if [ "$1" = mariadb-server-core ] && ! apt-cache show "$1" >/dev/null 2>&1; then
    versioned=$(apt-cache search --names-only '^mariadb-server-core-[0-9.]+$' | awk '{print $1}' | sort | tail -n 1)
    echo "${versioned:-$1}"
  elif [ "$1" = chromium ] && ! apt-cache show "$1" >/dev/null 2>&1; then
    echo chromium-browser
  else
    echo "$1"
  fi
}

# install_with_apt PACKAGE...
#
# redis-server's package also starts a system service on 127.0.0.1:6379. The ways to prevent that (a temporary
# policy-rc.d, masking the unit) change how this machine treats *other* packages if we are killed half-way, which is
# worse than an idle Redis on loopback; so we only say how to switch it off.
install_with_apt() {
  local as_root="" redis_was_here=no
  if [ "$(id -u)" -ne 0 ]; then as_root=sudo; fi
  if has redis-server; then redis_was_here=yes; fi
  say "installing with: ${as_root:+$as_root }apt-get install --no-install-recommends $*"
  # Fails also for one broken third-party source while the lists that matter are good.
  $as_root apt-get update -q >&2 || say "apt-get update failed; trying with the package lists at hand"
  local package packages=""
  for package in "$@"; do packages="$packages $(served_name "$package")"; done
  # shellcheck disable=SC2086 # a list of words
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages >&2 ||
    die 1 "apt-get could not install $*; its message is above (no network, no rights?). Other ways: NO_INSTALL=1 $0"
  if [ "$redis_was_here" = no ] && has redis-server && [ -d /run/systemd/system ]; then
    say "the package started a Redis on 127.0.0.1:6379, not used here; off with: systemctl disable --now redis-server"
  fi
}

# install_with_brew FORMULA...: never as root, which Homebrew refuses. It starts no service.
install_with_brew() {
  say "installing with: brew install $*"
  brew install "$@" >&2 ||
    die 1 "brew could not install $*; its message is above (no network?). Other ways: NO_INSTALL=1 $0"
}

# install_missing: installs with the system's package manager, or stops with advice where that is unwanted or unknown.
install_missing() {
  local packages
  if [ "$(uname -s)" = Darwin ]; then
    # Apple's compiler comes with a dialogue of its own, not with brew.
    if [ "$for_tests" = yes ] && ! has_cc; then stop_with_advice "xcode-select --install, then $0 again"; fi
    packages=$(missing mariadb redis "" google-chrome)
    if [ -n "${NO_INSTALL:-}" ] || ! has brew; then stop_with_advice "brew install $packages"; fi
    # shellcheck disable=SC2086 # a list of words
    install_with_brew $packages
  elif has apt-get; then
    packages=$(missing mariadb-server-core redis-server "gcc libc6-dev" chromium)
    if [ -n "${NO_INSTALL:-}" ] || { [ "$(id -u)" -ne 0 ] && ! has sudo; }; then
      stop_with_advice "as root: apt-get update && apt-get install $packages"
    fi
    # shellcheck disable=SC2086 # a list of words
    install_with_apt $packages
  else
    stop_with_advice "with this system's package manager"
  fi
}

main() {
  for_tests=no
  case "$#:${1:-}" in
    0:) ;;
    1:--tests) for_tests=yes ;;
    *) die 2 "usage: $0 [--tests]" ;;
  esac
  cd "$(dirname "$0")/.."
  check_go
  if [ -z "$(missing mysql redis cc browser)" ]; then return; fi
  install_missing
  local still
  still=$(missing mysql redis cc browser)
  [ -z "$still" ] || die 1 "installed, but still not found: $still in $server_path"
  say "ready"
}

main "$@"
