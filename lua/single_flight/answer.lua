-- single_flight/answer: returns what is known of the answer to a key, unchanged.
-- KEYS      see lib/lease, one run; the mark is the answer (string)
-- ARGV      how many bytes to return
-- returns   now (µs); the length of the stored string (0: there is none; -1: it is of another type); the time until
--           it expires (ms); its first bytes (see lib/answer)
-- writes    nothing
local length = redis.pcall('STRLEN', KEYS[2])
if type(length) == 'table' then return refused(length, 0, '') end
return {now, length, redis.call('PTTL', KEYS[2]), redis.call('GETRANGE', KEYS[2], 0, ARGV[1] - 1)}
