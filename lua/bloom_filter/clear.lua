-- bloom_filter/clear: forgets all items, and the configuration.
-- KEYS[1]   string, the configuration
-- KEYS[2]   string, bits of even generations; KEYS[3] of odd ones
-- ARGV      configuration (see lib/bloom)
-- returns   now (µs); 1, or what lib/bloom says is wrong: then nothing is cleared
-- writes    UNLINK of all three
local f, problem = bloom.open(KEYS[1], KEYS[2], KEYS[3], 1)
problem = problem or bloom.clear(f)
if problem then return bloom.refuse(problem, 1) end
return {now, 1}
