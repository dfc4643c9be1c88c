#!/usr/bin/env bash
# Tests the pages of the examples gateway and llm_gateway in headless Chromium, and installs it if it is missing.
# Usage: tests/page.sh [directory for new screenshots]
# Exits with 3 if there is no browser, and none can be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

if ! command -v chromedriver >/dev/null && ! tests/install.sh chromium chromium-driver; then
  say "install Chromium and its chromedriver with your system's package manager"
  exit 3
fi

cargo build --all-features --example gateway --example llm_gateway
cargo test --all-features --test house in_browser -- --ignored --skip screenshots
if [ $# -gt 0 ]; then
  SCREENSHOTS="$(realpath "$1")" cargo test --all-features --test house screenshots -- --ignored
fi
