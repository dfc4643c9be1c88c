#!/usr/bin/env bash
# Sets up what the tests need, or says what to install.
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
