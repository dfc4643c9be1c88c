#!/usr/bin/env bash
# Checks the library with the oldest version of each dependency that Cargo.toml admits. Works in target/minimal-versions.
set -euo pipefail
cd "$(dirname "$0")/.."

copy=target/minimal-versions
mkdir -p "$copy"
rm -rf "$copy/src" "$copy/lua" "$copy/docs" "$copy/Cargo.lock"
# The docs of the library show the pictures.
cp -r src lua docs README.md "$copy"
# Without the dependencies of tests and examples, which may ask for later versions.
awk '
  /^\[/ { skip = /^\[workspace\]/ || /dev-dependencies\]/ || /^\[\[/ }
  !skip
' Cargo.toml >"$copy/Cargo.toml"

cd "$copy"
# The option is unstable, but only resolves: with this variable a stable cargo has it as well.
RUSTC_BOOTSTRAP=1 cargo update --quiet -Z direct-minimal-versions
cargo tree --all-features --edges normal --depth 1
cargo check --quiet --all-features --target-dir target
cargo check --quiet --no-default-features --target-dir target
