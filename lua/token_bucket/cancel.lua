-- token_bucket/cancel: gives back what later reservations have not built upon.
-- KEYS[i]  string, the bucket of run i; the runs of one bucket stand side by side
-- ARGV     quotas (see lib/bucket); then per run what lib/cancel reads
-- returns  now (µs); then per run: 1 if anything was given back, else 0; -1 where the key holds something else
--          than a bucket
-- writes   changed buckets, SET with PXAT (see lib/bucket; without where a quota never refills); DEL when idle
-- cost     one MGET, one SET per changed bucket, one GET per bucket that MGET does not find
local width = 2 + 4 * quotas
return each_run(function(s, i, is_new) return cancel(s, first + width * (i - 1), is_new) end, on.save)
