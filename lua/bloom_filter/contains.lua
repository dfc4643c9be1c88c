-- bloom_filter/contains: returns which items the filter contains.
-- KEYS[1]   string, the configuration
-- KEYS[2]   string, bits of even generations; KEYS[3] of odd ones
-- ARGV      configuration (see lib/bloom); then per item its positions
-- returns   now (µs); per item 1 if the filter contains it, else 0; on a problem, per item the problem (see lib/bloom)
-- writes    nothing
-- cost      one GET, one BITFIELD_RO per group of items; if the filter forgets, one more per group of items that are
--           not in the current generation
return bloom.reply((#ARGV - 4) / ARGV[2], function(f) return bloom.contains(f, 5, #ARGV) end)
