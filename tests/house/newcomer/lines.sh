#!/usr/bin/env bash
# Counts the lines that a user writes in each program, and fails where they are more than promised.
set -euo pipefail
cd "$(dirname "$0")"
fails=0
check() {
  local name=$1 file=$2 most=$3 lines
  lines=$(awk -v begin="// user: ${name//-/_}" '/^ *\/\/ end$/ { inside = 0 } inside && NF { count++ } { sub(/^ */, "") } $0 == begin { inside = 1 } END { print count + 0 }' "$file.rs")
  echo "figure newcomer-lines-$name $lines (at most $most)"
  if [ "$lines" -eq 0 ] || [ "$lines" -gt "$most" ]; then fails=1; fi
}
check per-user web 4
check per-ip web 5
check tiers web 10
check several web 5
check response-cost web 9
check outbound outbound 8
check grpc grpc 4
check cron cron 6
check stampede web 3
check webhook web 5
check workers workers 3
check document web 3
exit $fails
