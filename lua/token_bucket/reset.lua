-- token_bucket/reset: a bucket is full and unblocked again.
-- KEYS[1]  string, the bucket
-- ARGV     none
-- returns  now (µs)
-- writes   DEL
redis.call('DEL', KEYS[1])
return {now}
