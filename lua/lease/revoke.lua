-- lease/revoke: releases a lease or a place in the queue of any process, and grants what becomes free. It tells the
-- process of a holder, which then looks after its lease.
-- KEYS      see lib/lease, per run
-- ARGV      see lib/queue; then per run: the token
-- returns   now (µs); then per run: 1: it held; 2: it waited; 0: neither; -1: a key is of another type
-- writes    deletes the lease; what is granted, with a ttl
local waiters = new_waiters()
asker = '' -- the reply may go to another process than that of the token, so all messages are published
return lease.each(1, function(run)
  local token = ARGV[1 + run]
  local was = kind.forget(token) and 1 or waiters.leave(token) and 2 or 0
  local process, id = string.match(token, '^(%x+)%-(%x+)')
  if was == 1 and process and #process == 16 then
    lease.publish(process, '0 0 ' .. id)
  end
  waiters.grant()
  return was
end, true)
