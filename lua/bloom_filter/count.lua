-- bloom_filter/count: returns how many bits are set.
-- KEYS[1]   string, the configuration
-- KEYS[2]   string, bits of even generations; KEYS[3] of odd ones
-- ARGV      configuration (see lib/bloom)
-- returns   now (µs); the number of set bits in the current generation; the same in the generation before; on a
--           problem, twice the problem (see lib/bloom)
-- writes    nothing
-- cost      a BITCOUNT of each array: some milliseconds for 64 MiB
return bloom.reply(2, bloom.count)
