-- lease/acquire: takes a lease, or a place in the queue for one; the same token again gets the same answer.
-- KEYS      see lib/lease, per run
-- ARGV      see lib/queue; then per run: token, ttl (µs), most (a queue of so many takes no more; 0: do not
--           wait), rank (lower ones go first)
-- returns   now (µs); then per run: 1 and expiry (µs), fence, 0: held; 2 or 0 and when the next lease ends (µs,
--           0: unknown), 0, how many wait before it: queued, or refused; -2: withdrawn before it came
-- writes    the lease, with a time to live of ttl; the place, until it no longer beats; the mark
-- cost      four commands for a free mutex
return each(#KEYS / 5, 4, function(run)
  local a = 4 * run
  local token, ttl = ARGV[a], tonumber(ARGV[a + 1])
  local most, rank = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local waiting = 0
  sweep()
  if call('EXISTS', queue, gone) > 0 then
    if tonumber(call('ZSCORE', gone, token) or 0) > now then return -2 end
    grant()
    waiting = call('ZCARD', queue)
  end
  local expiry, fence = held(token)
  if expiry then return 1, expiry, fence end
  if waiting > 0 and call('ZSCORE', queue, token) then return 2, soonest(), 0, call('ZRANK', queue, token) end
  local before = waiting > 0 and ahead(rank) or 0
  if before == 0 and fits(token) then return 1, now + ttl, hold(token, now + ttl) end
  if waiting >= most then return 0, soonest(), 0, before end
  line_up(token, rank)
  keep_queue()
  return 2, soonest(), 0, before
end)
