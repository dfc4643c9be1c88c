-- token_bucket/peek: returns all levels of each bucket with their quotas, unchanged.
-- KEYS[i]  string, the bucket of run i
-- ARGV     no quotas (see lib/bucket)
-- returns  now (µs); then per run: the state in table form (see lib/bucket), then what is held, if
--          anything is: tokens, earliest end (µs); or -1 if the key does not hold a bucket
-- writes   nothing
-- cost     one MGET, one GET per bucket that it does not find
return each_run(function(s) return s.holds and on.held(s, {unpack(s)}) or s end)
