-- token_bucket/block: admits nothing for some time; a longer block that exists is kept.
-- KEYS[i]  string, the bucket of run i; the runs of one bucket are adjacent
-- ARGV     quotas (see lib/bucket); then per run, or once for all runs: duration (µs)
-- returns  now (µs); then per run: blocked until (µs), or -1 if the key does not hold a bucket
-- writes   the buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills); DEL when idle
-- cost     one MGET, one SET per bucket, one GET per bucket that MGET does not find
local stride = #ARGV == first and 0 or 1
return each_run(function(s, i)
  s[1] = max(s[1], now + tonumber(ARGV[first + stride * (i - 1)]))
  return s[1], true
end, on.save)
