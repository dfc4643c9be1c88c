-- bloom_filter/clear: deletes all items and the configuration.
-- KEYS[1]   string, the configuration
-- KEYS[2]   string, bits of even generations; KEYS[3] of odd ones
-- ARGV      configuration (see lib/bloom)
-- returns   now (µs); 1, or the problem (see lib/bloom), in which case nothing is deleted
-- writes    UNLINK of all three keys
return bloom.reply(1, function(f) return {1}, bloom.clear(f) end)
