-- token_bucket/prefetch: charges tokens for requests that will come later.
-- KEYS[i]  string, the bucket of run i; the runs of one bucket are adjacent
-- ARGV     quotas (see lib/bucket); then per run, or once for all runs: maximum number of tokens
-- returns  now (µs); then per run a list: the number of tokens, at most a quarter of those available now, and 0 if
--          that is less than 8; then the state after it. -1 if the key does not hold a bucket
-- writes   charged buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills)
-- cost     one MGET, one SET per charged bucket, one GET per bucket that MGET does not find
local stride = #ARGV == first and 0 or 1
return each_run(function(s, i, is_new)
  local count = 0
  if s[1] <= now then
    count = min(tonumber(ARGV[first + stride * (i - 1)]), floor(on.free(s, now, 0) / 4))
    if count < 8 then count = 0 else on.charge(s, now, count) end
  end
  return {count, unpack(on.told(s))}, is_new or count > 0
end, on.save)
