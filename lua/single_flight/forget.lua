-- single_flight/forget: removes the answer to a key, also while a run is in progress, and notifies all processes.
-- KEYS      see lib/lease, one run; the mark is the answer (string)
-- ARGV      the channel of all processes; the message
-- returns   now (µs)
-- writes    the answer, DEL
redis.call('DEL', KEYS[2])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return {now}
