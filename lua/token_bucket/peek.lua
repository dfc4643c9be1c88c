-- token_bucket/peek: the state of a bucket, unchanged.
-- KEYS[1]  string, the bucket
-- ARGV     quotas (see lib/bucket)
-- returns  now (µs); the state
-- writes   nothing
local s = load(redis.call('GET', KEYS[1]))
return {now, type(s) == 'number' and s or {unpack(s, 1, 1 + 4 * quotas)}}
