#!/usr/bin/env bash
# Runs the tests of several processes with an older version: each second worker is of that one; the other workers, and the
# judges, are of this one. Usage: tests/side_by_side.sh [COMMIT [TEST]...]
set -euo pipefail
cd "$(dirname "$0")/.."

# The oldest commit that writes the stored forms of src/docs/wire_format.md.
if ! old="$(git rev-parse --short=8 "${1:-59118140}^{commit}" 2>/dev/null)"; then
  echo "passed over: this clone has no older version: git fetch --unshallow"
  exit $(($# > 0))
fi
shift $(($# > 0))
tests=(fleet leases_fleet once_dedupe once_fleet faults)
[ $# -eq 0 ] || tests=("$@")

# The older library, with the tests of this version.
tree="target/side_by_side/$old"
rm -rf "$tree"
mkdir -p "$tree/programs"
git archive "$old" | tar -x -C "$tree"
rm -r "$tree/tests"
mkdir -p "$tree/tests/faults"
cp -r tests/{fleet.rs,leases_fleet,once_dedupe,once_fleet,support} "$tree/tests"
# Of the tests of faults, their table alone.
cp -r tests/faults/table "$tree/tests/faults"
{ grep '^#!\[allow' tests/faults/main.rs; echo 'mod table;'; } >"$tree/tests/faults/main.rs"
if [ -e Cargo.lock ]; then cp Cargo.lock "$tree"; fi

# Not in the target folder of another version, whose programs would have the same names.
target="$PWD/$tree-target"
(cd "$tree" && CARGO_TARGET_DIR="$target" cargo test --all-features --no-run "${tests[@]/#/--test=}" 2>&1) |
  tee "$tree/build.txt"
while read -r name program; do
  ln -s "$program" "$tree/programs/$name"
done < <(sed -nE 's/^ *Executable tests\/([a-z_]*).* \((.*)\)$/\1 \2/p' "$tree/build.txt")

failed=0
for test in "${tests[@]}"; do
  only=()
  [ "$test" != faults ] || only=(table::)
  # One test after the other, so that each has workers of both versions.
  TOWER_DISTRIBUTED_OLD_TESTS="$PWD/$tree/programs" \
    cargo test --all-features --test "$test" "${only[@]}" -- --test-threads 1 || failed=1
done
exit "$failed"
