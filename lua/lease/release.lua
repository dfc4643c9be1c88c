-- lease/release: gives back a lease or a place in the queue, whichever it is, and grants what is free now.
-- KEYS      see lib/lease, per run
-- ARGV      see lib/queue; then per run: token, mourned (µs: for how long an acquire that comes after this is
--           refused; 0: none can)
-- returns   now (µs); then per run: 1 where it was held, 2 where it waited, 0 where it was neither
-- writes    what of KEYS it takes away or grants; the withdrawal, with PX
return each(#KEYS / 5, 1, function(run)
  local token, mourned = ARGV[2 * run + 2], tonumber(ARGV[2 * run + 3])
  sweep()
  local was = held(token) and forget(token) and 1 or 0
  if was == 1 and call('EXISTS', queue) == 0 then return 1 end
  if was == 0 and leave(token) then was = 2 end
  if was == 0 and mourned > 0 then
    call('ZADD', gone, int(now + mourned), token)
    call('ZREMRANGEBYSCORE', gone, '-inf', int(now))
    call('PEXPIRE', gone, ms(mourned))
  end
  grant()
  return was
end)
