-- single_flight/forget: forgets the answer to a key, whoever runs for it now, and tells all processes that keep it.
-- KEYS      see lib/lease, one run; the mark is the answer (string)
-- ARGV      the channel of all processes; what they are told
-- returns   now (µs)
-- writes    the answer, DEL
redis.call('DEL', KEYS[2])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return {now}
