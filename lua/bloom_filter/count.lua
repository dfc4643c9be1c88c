-- bloom_filter/count: returns how many bits are set.
-- KEYS[1]   string, the configuration
-- KEYS[2]   string, bits of even generations; KEYS[3] of odd ones
-- ARGV      configuration (see lib/bloom)
-- returns   now (µs); the number of set bits in the current generation; the same in the generation before; on a
--           problem, twice the problem (see lib/bloom)
-- writes    nothing
-- cost      a BITCOUNT of each array: some milliseconds for 64 MiB
local f, problem = bloom.open(KEYS[1], KEYS[2], KEYS[3], 1)
local counts
if f then counts, problem = bloom.count(f) end
if problem then return bloom.refuse(problem, 2) end
return {now, counts[1], counts[2]}
