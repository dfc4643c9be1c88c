#!/usr/bin/env bash
# Tests the page of the gateway example in headless Chromium, and installs it if it is missing.
# Usage: tests/page.sh [directory for new screenshots]
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

if ! command -v chromedriver >/dev/null; then
  as_root=""
  [ "$(id -u)" -eq 0 ] || as_root="sudo -n"
  if ! command -v apt-get >/dev/null; then
    say "install Chromium and its chromedriver with your system's package manager"
    exit 1
  fi
  say "installing chromium chromium-driver"
  export DEBIAN_FRONTEND=noninteractive
  $as_root apt-get update -qq
  $as_root apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null
fi

cargo build --all-features --example gateway
cargo test --all-features --test gateway page
if [ $# -gt 0 ]; then
  SCREENSHOTS="$(realpath "$1")" cargo test --all-features --test gateway screenshots -- --ignored
fi
