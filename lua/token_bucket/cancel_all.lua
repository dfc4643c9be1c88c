-- token_bucket/cancel_all: takes back the charge of one request on several buckets, for each bucket in which nothing
--          was charged after it.
-- KEYS[i]  string, the bucket of limit i
-- ARGV     sets of quotas (see lib/several); then per limit the arguments of lib/cancel
-- returns  now (µs); then per limit: 1 if anything was given back, else 0; -1 if the key does not hold a bucket
-- writes   changed buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills); DEL when idle
-- cost     one MGET, one SET per changed bucket, one GET per bucket that MGET does not find
local a, after = first, first
return each_run(function(s, _, is_new) return cancel(s, a, is_new) end, on.save, function(i)
  under(i)
  a, after = after, after + 2 + 4 * quotas
end)
