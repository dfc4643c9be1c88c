-- bloom_filter/check_and_insert: adds items, and says which were in before.
-- KEYS[1]   string, the configuration
-- KEYS[2]   string, bits of even generations; KEYS[3] of odd ones
-- ARGV      configuration (see lib/bloom); then per item its positions
-- returns   now (µs); per item 1 if it was in before, else 0; or in place of each what lib/bloom says is wrong
-- writes    the bits; the configuration and a whole array when a generation begins; with a time to live where the
--           filter forgets, else without
-- cost      one GET, one BITFIELD for some items at a time; where it forgets also one EXISTS, and a BITFIELD_RO for those that
--           seem new
local f, problem = bloom.open(KEYS[1], KEYS[2], KEYS[3], 1)
problem = problem or bloom.enter(f)
local seen
if not problem then seen, problem = bloom.add(f, 5, #ARGV) end
if problem then return bloom.refuse(problem, (#ARGV - 4) / tonumber(ARGV[2])) end
table.insert(seen, 1, now)
return seen
