-- token_bucket/peek: the state of a bucket, unchanged.
-- KEYS[1]  string, the bucket
-- ARGV     quotas (see lib/bucket)
-- returns  now (µs); the state, in table form
-- writes   nothing
return {now, {unpack(load_full(KEYS[1]), 1, 1 + 4 * quotas)}}
