-- fleet/read: returns the last versions of a setting, unchanged.
-- KEYS[1]   list, the versions (see fleet/set), the oldest first
-- ARGV      how many to return at most, at least 1
-- returns   now (µs); 1, or -1 if the key is of another type; the versions, the oldest first
-- writes    nothing
-- cost      O(1): there are at most 10 versions
local versions = redis.pcall('LRANGE', KEYS[1], -ARGV[1], -1)
if versions.err then return refused(versions, {}) end
return {now, 1, versions}
