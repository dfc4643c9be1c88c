#!/usr/bin/env bash
# Measures this crate beside libraries of Node.js and Python. Usage: benches/peers/run.sh [part of a figure's name]...
# Installs their packages below target/peers, and needs no root. A peer that cannot be installed is passed over.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf '%s\n' "$*" >&2; }

node=(rate-limiter-flexible@11.4.0 ioredis@6.0.0)
# With its fast parser.
python=('redis[hiredis]==8.1.0')
mkdir -p target/peers

# Installs once: a file names what is there.
installed() { [ "$(cat "target/peers/$1.installed" 2>/dev/null)" = "$2" ]; }

if installed node "${node[*]}"; then
  :
elif ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  say "passed over: ${node[*]}: node and npm are not on the PATH (on Debian, they are in the packages nodejs and npm)"
elif npm install --prefix target/peers --no-save --no-audit --no-fund --ignore-scripts --loglevel=error "${node[@]}" >&2; then
  printf '%s' "${node[*]}" >target/peers/node.installed
else
  say "passed over: npm cannot install ${node[*]}"
fi

if installed python "${python[*]}"; then
  :
elif ! command -v python3 >/dev/null; then
  say "passed over: ${python[*]}: python3 is not on the PATH"
elif python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --upgrade \
  --only-binary :all: --target target/peers/python "${python[@]}" >&2; then
  printf '%s' "${python[*]}" >target/peers/python.installed
else
  say "passed over: pip cannot install ${python[*]}"
fi

exec cargo bench -p tower-distributed-benches ${FEATURES:+--features "$FEATURES"} --bench peers -- "$@"
