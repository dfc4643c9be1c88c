#!/usr/bin/env bash
# Runs the benches and writes what they print into benches/README.md. Usage: benches/publish.sh [name of a bench]...
# Measures for 25 minutes at most; compiling comes before. Use an idle machine: the README says how busy it was.
#   BUDGET=10 benches/publish.sh decisions    minutes at most
#   QUICK=1 benches/publish.sh                one small round of every bench, to see that all of them run: writes no README
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_INCREMENTAL=0

say() { printf '%s\n' "$*" >&2; }

# Those without a section, for which nothing is published.
unpublished=(layer trust)
names=(stack layer_cost lone network decisions budgets leases fairness once real_redis peers scale soak)
readme=benches/README.md
[ -r /proc/stat ] || { say "this script needs Linux: it reads how busy the machine is from /proc/stat"; exit 1; }
out=target/publish
# With these packages alone: those of the library's tests switch features of tokio on that cost time.
features=cluster,rustls,sentinel
benches=(cargo bench -p tower-distributed-benches --features "$features")
soak=(cargo bench -p tower-distributed-soak --features cluster)


[ -z "${QUICK:-}" ] || names+=("${unpublished[@]}")
[ $# -eq 0 ] || names=("$@")
for name in "${names[@]}"; do
  [[ -n "${QUICK:-}" && " ${unpublished[*]} " == *" $name "* ]] || grep -qx "<!-- $name -->" "$readme" || { say "there is no bench $name with a section in $readme"; exit 1; }
done

# What is set for a bench: rounds and seconds of each, and what else takes long.
settings() {
  if [ -n "${QUICK:-}" ]; then
    case "$1" in
      scale) echo "ROUNDS=1 IDLE=2" ;;
      soak) echo "SECONDS=5" ;;
      *) echo "ROUNDS=1 SECONDS=0.2 HOLD=5 IDLE=3 KILLS=1 AWAY=3" ;;
    esac
    return
  fi
  case "$1" in
    stack) echo "ROUNDS=9 SECONDS=1 BUILD=1" ;;
    layer_cost) echo "ROUNDS=9 SECONDS=1" ;;
    network) echo "ROUNDS=5 SECONDS=0.3" ;;
    decisions) echo "ROUNDS=5 SECONDS=0.3 IDLE=30" ;;
    leases) echo "ROUNDS=5 SECONDS=0.5 HOLD=30 IDLE=20" ;;
    real_redis) echo "ROUNDS=5 SECONDS=0.5 KILLS=3 AWAY=10" ;;
    # The capacity of the service behind adaptive limits changes every 2 SECONDS.
    fairness) echo "ROUNDS=7 SECONDS=1" ;;
    # Leases are renewed every 10 s.
    scale) echo "ROUNDS=3 IDLE=20" ;;
    soak) echo "SECONDS=30" ;;
    *) echo "ROUNDS=5 SECONDS=0.5" ;;
  esac
}

# Replaces a section of the README by a file.
replace() {
  awk -v begin="<!-- $1 -->" -v end="<!-- /$1 -->" -v file="$2" '
    $0 == begin { print; print ""; while ((getline line < file) > 0) print line; print ""; inside = 1; next }
    $0 == end { inside = 0 }
    !inside' "$readme" >"$out/README.md"
  mv "$out/README.md" "$readme"
}

# The share of the machine's CPU time, in percent, that was in use for 3 s.
busy() {
  local before after
  before="$(head -1 /proc/stat)"
  sleep 3
  after="$(head -1 /proc/stat)"
  # Time that is idle, or waits for a disk, is not in use.
  printf '%s\n%s\n' "$before" "$after" | awk '
    { all = 0; for (i = 2; i <= 9; i++) all += $i; used = all - $5 - $6 }
    NR == 1 { all0 = all; used0 = used }
    NR == 2 { printf "%.0f", 100 * (used - used0) / (all - all0) }'
}

version() { "$@" 2>/dev/null | head -1 || true; }

machine() {
  local model redis
  model="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
  redis="$("${TOWER_DISTRIBUTED_REDIS_SERVER:-redis-server}" --version | sed -E 's/^([A-Za-z]+) server v=([^ ]+).*/\1 \2/')"
  printf '%s, %s virtual cores, %s, %s, %s' "${model:-$(uname -m)}" "$(nproc)" "$(uname -sr)" "$redis" "$(version rustc --version)"
  case "$1" in
    stack) printf ', %s' "$(wrk -v 2>&1 | head -1 | sed 's/ Copyright.*//' || true)" ;;
    peers) printf ', Node.js %s, %s' "$(version node --version)" "$(version python3 --version)" ;;
  esac
}

mkdir -p "$out"
command -v wrk >/dev/null || tests/install.sh wrk || say "wrk cannot be installed: the bench stack says what it passes over"
say "compiling"
# What is asked for, so that nothing compiles while it is measured.
targets=()
for name in "${names[@]}"; do [ "$name" = soak ] || targets+=(--bench "$name"); done
[ "${#targets[@]}" -eq 0 ] || "${benches[@]}" "${targets[@]}" --no-run
[[ " ${names[*]} " != *" soak "* ]] || "${soak[@]}" --bench soak --no-run
running=
# `timeout` passes the signal on to the bench and its servers.
trap '[ -z "$running" ] || kill "$running" 2>/dev/null || true; exit 130' INT TERM
end=$(($(date +%s) + ${BUDGET:-25} * 60))
failed=0
for name in "${names[@]}"; do
  read -ra set <<<"$(settings "$name")"
  case "$name" in
    peers) command=(env "FEATURES=$features" benches/peers/run.sh) ;;
    soak) command=("${soak[@]}" --bench soak) ;;
    # Criterion runs each once.
    layer) command=("${benches[@]}" --bench "$name" -- --test) ;;
    *) command=("${benches[@]}" --bench "$name") ;;
  esac
  [ -n "${QUICK:-}" ] || busy="$(busy)"
  left=$((end - $(date +%s)))
  if [ "$left" -le 0 ]; then
    say "passed over: $name: the time is over"
    failed=1
    continue
  fi
  say "$name: ${set[*]}, for $left s at most"
  began=$(date +%s)
  timeout --kill-after=10 "$left" env "${set[@]}" "${command[@]}" >"$out/$name.txt" &
  running=$!
  if ! wait "$running"; then
    say "passed over: $name has failed, or the time is over: $out/$name.txt. Its section stays as it was"
    failed=1
    continue
  fi
  [ -z "${QUICK:-}" ] || continue
  if grep -q '^passed over: ' "$out/$name.txt"; then
    say "$name: $(grep '^passed over: ' "$out/$name.txt"). Its section stays as it was"
    continue
  fi
  took=$(($(date +%s) - began))
  {
    printf '`%s`\n\n' "$(tr -s " " <<<"${set[*]} ${command[*]#env}")"
    printf '%s, in %s s. %s. ' "$(date -u +%F)" "$took" "$(machine "$name")"
    printf 'Before, the machine used %s %% of its CPU time.' "$busy"
    [ "$busy" -le 10 ] || printf ' **Other programs ran beside: the absolute figures are too low, and the ratios less exact.**'
    printf '\n'
    grep -v '^figure ' "$out/$name.txt" | cat -s
  } >"$out/$name.md"
  replace "$name" "$out/$name.md"
done

[ -z "${QUICK:-}" ] || exit $failed

# The figures of all sections whose last column names a peer.
{
  echo '| figure | measures | this crate | peer | of the peer | ratio | better |'
  echo '|---|---|---|---|---|---|---|'
  awk -F ' *[|] *' '
    /^<!-- better -->/ { skip = 1 } /^<!-- \/better -->/ { skip = 0 }
    /^\| figure / { figures = 1; next }
    !/^\|/ { figures = 0 }
    !skip && figures && $8 != "this crate" && $8 != "equal" && $8 != "–" && $2 !~ /^-+$/ {
      printf "| %s | %s | %s | %s | %s | %s | %s |\n", $2, $3, $4, $5, $6, $7, $8
    }' "$readme"
} >"$out/better.md"
replace better "$out/better.md"
exit $failed
