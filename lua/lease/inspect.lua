-- lease/inspect: returns the sum of weights held, and the number of waiters.
-- KEYS      see lib/lease, per run
-- ARGV      none
-- returns   now (µs); then per run: the sum of weights held (-1: a key is of another type), when the next lease ends
--           (µs, 0: unknown), how many waiters there are
-- writes    removes expired holders, and cuts leases that last longer than their ttl: changes that time makes anyway
kind.more()
if kind.read then kind.read() end
return lease.each(3, function()
  if kind.sweep then kind.sweep() end
  return kind.used(), kind.soonest(), lease.ahead(kind.counts)
end)
