-- fleet/look_refused: returns which keys a process has refused most, unchanged.
-- KEYS[1]   string, the list (see fleet/refused)
-- ARGV      how many bytes to return at most
-- returns   now (µs); 1, or -1 if the key is of another type; the list, empty if there is none
-- writes    nothing
-- cost      O(1): the bytes are bounded
local list = redis.pcall('GETRANGE', KEYS[1], 0, ARGV[1] - 1)
if type(list) == 'table' then return refused(list, '') end
return {now, 1, list}
