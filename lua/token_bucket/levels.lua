-- token_bucket/levels: returns all levels of each bucket with their quotas, unchanged.
-- KEYS[i]  string, the bucket of run i
-- ARGV     0: no quotas (see lib/bucket)
-- returns  now (µs); then per run: the state in table form (see lib/bucket), or -1 if the key does not hold a bucket
-- writes   nothing
return each_run(function(s) return s end)
