#!/usr/bin/env bash
# Counts the lines that a user writes in each program, and fails where they are more than promised.
set -euo pipefail
cd "$(dirname "$0")"
fails=0
check() {
  local name=$1 file=$2 most=$3 lines
  lines=$(awk '/^ *\/\/ end$/ { inside = 0 } inside && NF { count++ } /^ *\/\/ user$/ { inside = 1 } END { print count + 0 }' "$file.rs")
  echo "figure newcomer-lines-$name $lines (at most $most)"
  if [ "$lines" -eq 0 ] || [ "$lines" -gt "$most" ]; then fails=1; fi
}
check per-user per_user 4
check per-ip per_ip 5
check tiers tiers 10
check several several 5
check response-cost response_cost 6
check outbound outbound 6
check grpc grpc 4
check cron cron 6
check stampede stampede 3
check webhook webhook 5
check workers workers 3
check document document 3
exit $fails
