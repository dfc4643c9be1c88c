#!/usr/bin/env bash
# Sets up what the tests need and runs them all. Usage: tests/run.sh [arguments for cargo test]
# `SIZE=4 tests/run.sh` puts four times the load on the long tests.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

command -v cargo >/dev/null || { say "cargo is missing: install Rust 1.88 or later"; exit 1; }

# The tests start servers of their own; only the programs are needed, and no service.
missing=""
command -v redis-server >/dev/null || missing=" redis-server"
lib="/usr/lib/$(uname -m)-linux-gnu/faketime/libfaketime.so.1"
[ -e "$lib" ] || missing="$missing libfaketime"
command -v luacheck >/dev/null || missing="$missing lua-check"
# For the feature native-tls, which is OpenSSL on Linux.
pkg-config --exists openssl 2>/dev/null || missing="$missing pkg-config libssl-dev"
# shellcheck disable=SC2086
if [ -n "$missing" ]; then
  if tests/install.sh $missing; then
    :
  elif ! command -v redis-server >/dev/null || ! pkg-config --exists openssl 2>/dev/null; then
    say "the tests need:$missing. Install these packages with your system's package manager"
    say "(redis-server 7.0 or later; the headers of OpenSSL and pkg-config; libfaketime is Debian's, at $lib;"
    say "luacheck is in lua-check)."
    exit 1
  else
    say "cannot install:$missing. The tests that need it say so and pass over it:"
    say "without luacheck, the Lua scripts are compiled, but not checked for warnings."
  fi
fi

# Most tests wait for servers and for leases to end, so more of them than cores run at once.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((2 * $(getconf _NPROCESSORS_ONLN)))}"
run() { cargo test --all-features --no-fail-fast "$@"; }

if [ $# -gt 0 ]; then
  run "$@"
  exit
fi

# The unit tests search a million states, so they are optimized. All else is compiled sooner without. The parts are those of
# `cargo test`; some tests run the examples. One run tells all that fails.
failed=0
run --lib -p tower-distributed --config 'profile.dev.package.tower-distributed.opt-level=1' || failed=1
cargo build --all-features --examples || failed=1
run --bins --test '*' --bench soak || failed=1
run --doc || failed=1
exit "$failed"
