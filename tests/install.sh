#!/usr/bin/env bash
# Installs packages of Debian, if that can be done without a question. Usage: tests/install.sh PACKAGE...
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

as_root=""
[ "$(id -u)" -eq 0 ] || as_root="sudo -n"
if ! command -v apt-get >/dev/null || { [ -n "$as_root" ] && ! sudo -n true 2>/dev/null; }; then
  exit 1
fi
say "installing $*"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
# RUNLEVEL=1 keeps a package from starting a server.
$as_root env RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "$@" >/dev/null
