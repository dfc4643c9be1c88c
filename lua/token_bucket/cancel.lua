-- token_bucket/cancel: gives back the part of a charge on which no later reservation depends.
-- KEYS[i]  string, the bucket of run i; the runs of one bucket are adjacent
-- ARGV     quotas (see lib/bucket); then per run the arguments of lib/cancel
-- returns  now (µs); then per run: 1 if anything was given back, else 0; -1 if the key does not hold a bucket
-- writes   changed buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills); DEL when idle
-- cost     one MGET, one SET per changed bucket, one GET per bucket that MGET does not find
local width = 2 + 4 * quotas
return each_run(function(s, i, is_new) return cancel(s, first + width * (i - 1), is_new) end, on.save)
