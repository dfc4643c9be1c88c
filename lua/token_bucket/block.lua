-- token_bucket/block: nothing is admitted for a while; a longer block that stands is kept.
-- KEYS[1]  string, the bucket
-- ARGV     quotas (see lib/bucket); how long (µs)
-- returns  now (µs); blocked until (µs)
-- writes   the bucket, SET with PX until full and unblocked (without where a quota never refills)
local s = load_full(KEYS[1])
s[1] = max(s[1], now + tonumber(ARGV[first]))
local blocked = s[1]
local saved = save(KEYS[1], s)
if type(saved) == 'table' and saved.err then return saved end
return {now, blocked}
