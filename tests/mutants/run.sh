#!/usr/bin/env bash
# Mutants of the Rust sources: a random sample of what cargo-mutants lists is compiled at once and switched on one by one, so
# that a mutant costs the tests that reach it, not a build. Usage: run.sh [SAMPLE [SEED [GLOB...]]]; SAMPLE is 300 if it is not
# given. With globs of files, as 'src/lease/**', the mutants are those of these.
set -euo pipefail
cd "$(dirname "$0")/../.."
sample="${1:-300}"
seed="${2:-$(date +%s)}"
files=()
for glob in "${@:3}"; do files+=(--file "$glob"); done
folder="$PWD/target/mutants"
mkdir -p "$folder"

export PATH="$PWD/target/tools/bin:$PATH"
for tool in mutants nextest; do
  command -v "cargo-$tool" >/dev/null || cargo install --quiet --locked --root target/tools "cargo-$tool"
done
python="$folder/python/bin/python"
[ -x "$python" ] || python3 -m venv "$folder/python"
"$python" -m pip install --quiet tree-sitter==0.26.1 tree-sitter-rust==0.24.2

# What git knows, as it is in the folder.
rm -rf "$folder"/{tree,original,reached}
mkdir -p "$folder"/{tree,original,reached}
git ls-files -z | tar --null -T - -c | tar -x -C "$folder/tree"
cp -r "$folder/tree/src" "$folder/original"
if [ -e Cargo.lock ]; then cp Cargo.lock "$folder/tree"; fi
export CARGO_TARGET_DIR="$folder/target" CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
cd "$folder/tree"
cargo mutants --list --json --config ../../../tests/mutants/mutants.toml "${files[@]}" >"$folder/list.json"

echo "a sample of $sample, seed $seed"
"$python" ../../../tests/mutants/plant.py "$folder" "$sample" "$seed"

tests=(--all-features -p tower-distributed --config 'profile.dev.package.tower-distributed.opt-level=1' --lib)
for test in suite layers telemetry newcomer engine once_dedupe once_dedupe_faults once_faults lease_faults leases_fleet once_fleet fleet faults; do
  tests+=(--test "$test")
done
cargo nextest list "${tests[@]}" --list-type binaries-only --message-format json >"$folder/binaries.json"
# The suite's servers of Sentinel and Cluster would be started for each test alone: their tests run as one.
REACHED="$folder/reached" cargo nextest run "${tests[@]}" --no-fail-fast --test-threads 6 -E 'not (binary(suite) & test(/^(cluster|sentinel)::/))' \
  >"$folder/tests.txt" 2>&1 || grep FAIL "$folder/tests.txt"
path='import json, sys; print(json.load(open(sys.argv[1]))["rust-binaries"]["tower-distributed::suite"]["binary-path"])'
suite="$("$python" -c "$path" "$folder/binaries.json")"
for module in cluster:: sentinel::; do
  begin=$SECONDS
  if REACHED="$folder/reached" NEXTEST_BINARY_ID=tower-distributed::suite NEXTEST_TEST_NAME="$module" CARGO_MANIFEST_DIR="$PWD" \
    "$suite" "$module" >"$folder/module.txt"; then
    echo "  PASS [ $((SECONDS - begin)).0s] (1/1) tower-distributed::suite $module" >>"$folder/tests.txt"
  else
    tail -n 5 "$folder/module.txt"
  fi
done
"$python" ../../../tests/mutants/judge.py "$folder"
