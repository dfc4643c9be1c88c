-- single_flight/forget: forgets the answer to a key, whoever runs for it now.
-- KEYS      see lib/lease, one run; the mark is the answer (string)
-- ARGV      none
-- returns   now (µs)
-- writes    the answer, DEL
redis.call('DEL', KEYS[2])
return {now}
