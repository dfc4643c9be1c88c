-- token_bucket/peek: returns the state of each bucket, unchanged.
-- KEYS[i]  string, the bucket of run i
-- ARGV     quotas (see lib/bucket)
-- returns  now (µs); then per run: the state, or -1 if the key does not hold a bucket
-- writes   nothing
-- cost     one MGET, one GET per bucket that it does not find
return each_run(function(s) return on.told(s) end)
