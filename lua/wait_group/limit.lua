-- wait_group/limit: returns the stored limit of a key, unchanged.
-- KEYS[1]   string, see wait_group/adapt
-- ARGV      none
-- returns   now (µs); 1, or -1 if the key is of another type; the numbers as text, empty: none are stored
-- writes    nothing
-- cost      one GET
local raw = redis.pcall('GET', KEYS[1])
if type(raw) == 'table' then return refused(raw, '') end
return {now, 1, raw or ''}
