-- bloom_filter/inspect: returns the stored configuration, and how many bits are set in the sample of each array.
-- KEYS[1]   string, the configuration
-- KEYS[2]   string, bits of even generations; KEYS[3] of odd ones
-- ARGV      the size of the sample (bytes)
-- returns   now (µs); the configuration (0: there is none; -1: a key is of another type); the number of set bits in the
--           sample of the first array; the same of the second
-- writes    nothing
local reply = {now, redis.pcall('GET', KEYS[1]) or 0}
for i = 2, 3 do reply[i + 1] = redis.pcall('BITCOUNT', KEYS[i], 0, ARGV[1] - 1) end
for i = 2, 4 do
  if type(reply[i]) == 'table' then return refused(reply[i], 0, 0) end
end
return reply
