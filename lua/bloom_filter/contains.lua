-- bloom_filter/contains: says which items are in.
-- KEYS[1]   string, the configuration
-- KEYS[2]   string, bits of even generations; KEYS[3] of odd ones
-- ARGV      configuration (see lib/bloom); then per item its positions
-- returns   now (µs); per item 1 if it is in, else 0; or in place of each what lib/bloom says is wrong
-- writes    nothing
-- cost      one GET, one BITFIELD_RO for some items at a time; where the filter forgets, another for those that are not in
--           the current generation
local f, problem = bloom.open(KEYS[1], KEYS[2], KEYS[3], 1)
local seen
if f then seen, problem = bloom.contains(f, 5, #ARGV) end
if problem then return bloom.refuse(problem, (#ARGV - 4) / tonumber(ARGV[2])) end
table.insert(seen, 1, now)
return seen
