-- fleet/refused: stores which keys a process has refused most.
-- KEYS[1]   string, the list
-- ARGV      the list; its ttl, ms
-- returns   now (µs); 1
-- writes    the string, with a ttl: SET
-- cost      O(1): the list has at most 32 keys
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {now, 1}
