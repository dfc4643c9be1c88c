#!/usr/bin/env bash
# Sets up what the tests need and runs them all. Usage: tests/run.sh [arguments for cargo test]
# `SIZE=4 tests/run.sh` puts four times the load on the long tests.
set -euo pipefail
cd "$(dirname "$0")/.."

tests/setup.sh

# Most tests wait for servers and for leases to end, so more of them than cores run at once: of those in `tests` twice as many
# as of the unit tests.
cores="$(getconf _NPROCESSORS_ONLN)"
run() { RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((${at_once:-4} * cores))}" cargo test --all-features --no-fail-fast "$@"; }

if [ $# -gt 0 ]; then
  run "$@"
  exit
fi

# The unit tests search a million states, so they are optimized. All else is compiled sooner without. The parts are those of
# `cargo test`; some tests run the examples. One run tells all that fails.
failed=0
at_once=2 run --lib -p tower-distributed --config 'profile.dev.package.tower-distributed.opt-level=1' || failed=1
cargo build --all-features --examples || failed=1
run --bins --test '*' --bench soak || failed=1
run --doc || failed=1
exit "$failed"
