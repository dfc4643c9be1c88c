-- token_bucket/reset: fills and unblocks a bucket.
-- KEYS[1]  string, the bucket
-- ARGV     none
-- returns  now (µs)
-- writes   DEL
redis.call('DEL', KEYS[1])
return {now}
