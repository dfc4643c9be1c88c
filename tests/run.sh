#!/usr/bin/env bash
# Sets up what the tests need and runs them all. Usage: tests/run.sh [arguments for cargo test]
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

command -v cargo >/dev/null || { say "cargo is missing: install Rust 1.88 or later"; exit 1; }

# The tests start servers of their own; only the programs are needed, and no service.
missing=""
command -v redis-server >/dev/null || missing=" redis-server"
lib="/usr/lib/$(uname -m)-linux-gnu/faketime/libfaketime.so.1"
[ -e "$lib" ] || missing="$missing libfaketime"
if [ -n "$missing" ]; then
  as_root=""
  [ "$(id -u)" -eq 0 ] || as_root="sudo -n"
  # Elsewhere than on Debian the tests that need libfaketime say so and pass over it.
  if command -v redis-server >/dev/null && ! command -v apt-get >/dev/null; then
    missing=""
  elif ! command -v apt-get >/dev/null || { [ -n "$as_root" ] && ! sudo -n true 2>/dev/null; }; then
    say "the tests need:$missing. Install these packages with your system's package manager"
    say "(redis-server 7.0 or later; libfaketime is Debian's, at $lib)."
    exit 1
  fi
  say "installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  $as_root apt-get update -qq
  # RUNLEVEL=1 keeps the package from starting a server.
  # shellcheck disable=SC2086
  $as_root env RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

cargo test --all-features "$@"
