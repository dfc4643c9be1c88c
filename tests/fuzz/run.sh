#!/usr/bin/env bash
# Fuzzes one target, or each of them: run.sh [TARGET [SECONDS]]. Inputs that found something new are added to the corpus, which
# is kept below target/fuzz/; those in regressions/ are run first, always. An input that fails is written to regressions/.
set -euo pipefail
cd "$(dirname "$0")"

# What cargo-fuzz passes to rustc, without the sanitizers that need a nightly toolchain.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# With a target, the flags are not those of build scripts.
export CARGO_TARGET_DIR="$PWD/../../target/fuzz"
host="$(rustc -vV | sed -n 's/^host: //p')"
cargo build --release --target "$host"

targets="${1:-$(cd src/bin && printf '%s\n' *.rs | sed 's/\.rs$//')}"
for target in $targets; do
  mkdir -p "$CARGO_TARGET_DIR/corpus/$target" "regressions/$target"
  # A single input may take 30 s and 512 MiB at most.
  "$CARGO_TARGET_DIR/$host/release/$target" "$CARGO_TARGET_DIR/corpus/$target" "regressions/$target" -artifact_prefix="regressions/$target/" \
    -dict="dictionary.txt" -max_total_time="${2:-60}" -max_len=8192 -timeout=30 -rss_limit_mb=512 -print_final_stats=1
done
