#!/usr/bin/env bash
# Prints how much there is to read, and fails where it is more than tests/weight.txt admits: code lines of src, lua and tests
# (without comments and blanks; unit tests are not src), public types and methods, files above 400 lines, and crates.
# `tests/weight.sh build` also measures a cold build of the library with its default features.
set -euo pipefail
cd "$(dirname "$0")/.."

count() { awk -v comment="$1" '{ sub(/^[ \t]+/, "") } NF && index($0, comment) != 1 { n++ } END { print n + 0 }'; }
api() { grep -cE "$1" tests/public_api.txt || true; }

# The files below src that only tests have: those of modules behind `#[cfg(test)]`, `#[cfg(all(test, …))]`,
# `#[cfg(interleavings)]` or `#[cfg(simulation)]`.
only_tests() {
  find src -name '*.rs' | while read -r file; do
    folder="${file%.rs}"
    case "${file##*/}" in mod.rs | lib.rs) folder="${file%/*}" ;; esac
    awk '/#\[cfg\((test|all\(test|interleavings|simulation)/ { test = 1; next } test && /^ *#\[/ { next }
         test && match($0, /mod [a-z_]+;/) { print substr($0, RSTART + 4, RLENGTH - 5) } { test = 0 }' "$file" |
      while read -r name; do printf '%s/%s.rs\n%s/%s/\n' "$folder" "$name" "$folder" "$name"; done
  done
}

tests="$(mktemp)"
trap 'rm -f "$tests"' EXIT
only_tests > "$tests"
library() { find "$1" -name '*.rs' | grep -vFf "$tests" | sort; }
# Without the unit tests at the end of a file, and without single items of them.
own() {
  awk '/^#\[cfg\((test|all\(test|any\(test)/ { test = 1; next } test && /^mod [a-z_]+ \{/ { exit } test && /^mod |^pub.* mod |^#/ { next }
       { test = 0; print }' "$1"
}
lines_of() { while read -r file; do own "$file"; done | count //; }

echo "| folder | code lines |"
echo "|---|---|"
for folder in src/*/ src/store/redis/; do
  printf '| %s | %s |\n' "$folder" "$(library "$folder" | lines_of)"
done
for folder in lua/; do
  printf '| %s | %s |\n' "$folder" "$(find "$folder" -maxdepth 1 -name '*.lua' -exec cat {} + | count --)"
done
echo

fails=0
figure() {
  local name=$1 number=$2 most
  most="$(awk -v name="$name" '$1 == name { print $2 }' tests/weight.txt)"
  echo "figure weight-$name $number (at most ${most:-unknown})"
  if [ -z "$most" ] || [ "$number" -gt "$most" ]; then fails=1; fi
}
figure src-code-lines "$(library src | lines_of)"
figure lua-code-lines "$(find lua -name '*.lua' -exec cat {} + | count --)"
figure tests-code-lines "$({ find tests -name '*.rs'; find src -name '*.rs' | grep -Ff "$tests"; } | xargs cat | count //)"
# A second path of an item is marked by `=`.
figure public-types "$(awk '/^    = / { n -= type; next } { type = /^(struct|enum|trait|type|union) /; n += type }
  END { print n + 0 }' tests/public_api.txt)"
figure public-methods "$(api '^    pub (async |const )*fn ')"
figure long-files "$(library src | while read -r file; do own "$file" | wc -l; done | awk '$1 > 400 { n++ } END { print n + 0 }')"
figure crates "$(cargo tree -p tower-distributed -e normal --prefix none | sed 's/ (\*)//; s/ (proc-macro)//' | sort -u | wc -l)"

if [ "${1:-}" = build ]; then
  target="$(mktemp -d)"
  began=$SECONDS
  CARGO_TARGET_DIR="$target" cargo build --quiet -p tower-distributed
  echo "figure build-seconds $((SECONDS - began))"
  rm -rf "$target"
fi
exit $fails
