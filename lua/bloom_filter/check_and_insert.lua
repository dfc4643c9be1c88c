-- bloom_filter/check_and_insert: inserts items and returns which of them the filter contained before.
-- KEYS[1]   string, the configuration
-- KEYS[2]   string, bits of even generations; KEYS[3] of odd ones
-- ARGV      configuration (see lib/bloom); then per item its positions
-- returns   now (µs); per item 1 if the filter contained it before, else 0; on a problem, per item the problem (see
--           lib/bloom)
-- writes    the bits; the configuration and a whole array when a generation begins, or where the server evicted it; both with
--           a time to live if the filter forgets
-- cost      one GET, one EXISTS, one BITFIELD per group of items; if the filter forgets, also one BITFIELD_RO per group of
--           items that are not in the current generation
return bloom.reply((#ARGV - 4) / ARGV[2], function(f)
  local problem = bloom.enter(f)
  if problem then return nil, problem end
  return bloom.add(f, 5, #ARGV)
end)
