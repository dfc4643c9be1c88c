-- bloom_filter/open: makes sure that a filter with this configuration exists.
-- KEYS[1]   string, the configuration
-- KEYS[2]   string, bits of even generations; KEYS[3] of odd ones
-- ARGV      configuration (see lib/bloom)
-- returns   now (µs); 1, or the problem (see lib/bloom)
-- writes    the configuration and a whole array (SET and SETRANGE) if they do not exist; both with a time to live if
--           the filter forgets
return bloom.reply(1, function(f) return {1}, bloom.enter(f) end)
