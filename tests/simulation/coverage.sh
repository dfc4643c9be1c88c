#!/usr/bin/env bash
# Tells what simulated worlds reach: the functions and lines of the scripts, and the branches of the store by file. Usage:
# tests/simulation/coverage.sh [worlds] [seed]. Needs the tools of LLVM: rustup component add llvm-tools
set -euo pipefail
cd "$(dirname "$0")/../.."
worlds="${1:-2000}" seed="${2:-1}"
export CARGO_INCREMENTAL=0

tools="$(find "$(rustc --print sysroot)/lib/rustlib" -name llvm-cov -printf '%h\n' -quit)"
[ -n "$tools" ] || { printf '%s\n' 'no llvm-cov: rustup component add llvm-tools' >&2; exit 3; }

# Branches are counted by the compiler's unstable part.
export RUSTC_BOOTSTRAP=1 LLVM_PROFILE_FILE="$PWD/target/coverage/worlds-%p.profraw"
export RUSTFLAGS="--cfg simulation --cfg tokio_unstable -C instrument-coverage -Z coverage-options=branch"
rm -f target/coverage/*.profraw
program=target/coverage/simulation/simulation
cargo build --quiet -p tower-distributed-simulation --profile simulation --target-dir target/coverage
rm -f target/coverage/*.profraw
"$program" --worlds "$worlds" --from "$seed" --coverage
"$tools/llvm-profdata" merge -sparse target/coverage/*.profraw -o target/coverage/worlds.profdata
"$tools/llvm-cov" export "$program" -instr-profile target/coverage/worlds.profdata -summary-only src/store |
  python3 -c '
import json, sys
files = json.load(sys.stdin)["data"][0]["files"]
total = [0, 0]
for file in sorted(files, key=lambda file: file["filename"]):
    if "/src/store/" not in file["filename"] or "/tests" in file["filename"]: continue
    branches = file["summary"]["branches"]
    total = [total[0] + branches["covered"], total[1] + branches["count"]]
    name = file["filename"].split("/src/")[1]
    print("%4d of %4d branches  %s" % (branches["covered"], branches["count"], name))
print("branches of src/store: %d of %d, %.3f" % (*total, total[0] / max(1, total[1])))
'
