#!/usr/bin/env bash
# Runs the tests that judge spans of time in rounds, beside loops that take all of the processor, and prints each failure.
# Usage: ROUNDS=50 BUSY=4 tests/under_load.sh
# Nothing else should run on the machine: the scheduler may give another group of processes as much of it as all of these together.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds="${ROUNDS:-5}"
busy="${BUSY:-4}"
# So many tests run at once: most of them wait.
at_once=8
# The program, and the part of a test's name that chooses it: the longest first.
tests=(
  "layers single_flight::privacy"
  "engine all_quiet::each_state_that_lasts_has_few_calls"
  "faults slots::a_node_joins_and_leaves_under_load"
  "engine cluster::a_master_that_is_ill_affects_its_own_keys_only"
  "faults leases::crowds::each_is_released_once"
  "faults failover::a_waiter_beside_a_release_that_no_replica_has_is_woken"
  "faults leases::wakes::"
  "engine overload::a_burst_of_unique_keys"
  "engine outages::connecting_may_take_longer_than_a_call"
  "layers stacks::upstream_limits"
  "layers leases::away::a_mutex_keeps"
  "layers contract::dropped::after_each_number_of_polls::redis::SeveralLimits"
  "suite who_cannot_be_served_in_time_is_refused"
  "suite turns_come_sooner_with_more_permits"
  "suite a_hold_is_renewed_and_lost"
)

programs="$(printf -- '--test %s ' $(printf '%s\n' "${tests[@]}" | cut -d' ' -f1 | sort -u))"
work="$(mktemp -d)"
# shellcheck disable=SC2086 # several words
cargo test --all-features --no-run --message-format=json $programs \
  | sed -nE 's/.*"name":"([a-z_]+)".*"executable":"([^"]+)".*/\1 \2/p' >"$work/programs"

loops=()
stop() {
  [ "${#loops[@]}" -eq 0 ] || kill "${loops[@]}" 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT
for _ in $(seq "$busy"); do
  (while :; do :; done) &
  loops+=($!)
done

one() {
  local work="$1" round="$2" program="$3" test="$4" executable log
  executable="$(sed -n "s/^$program //p" "$work/programs")"
  log="$work/$round.$program.${test//:/_}"
  if ! CARGO_MANIFEST_DIR="$PWD" "$executable" --test-threads 2 "$test" >"$log" 2>&1; then
    cat "$log" >>"$work/failures"
    echo "FAILED in round $round: $program $test"
  elif grep -q 'running 0 tests' "$log"; then
    echo "no test: $program $test" | tee -a "$work/failures"
  elif [ "$test" = "all_quiet::each_state_that_lasts_has_few_calls" ]; then
    echo "round $round"
  fi
}
export -f one

: >"$work/failures"
# A round begins while the last tests of the one before still run.
for round in $(seq "$rounds"); do
  printf "$round %s\n" "${tests[@]}"
done | xargs -P "$at_once" -L 1 bash -c 'one "$@"' one "$work"
cat "$work/failures"
[ ! -s "$work/failures" ]
