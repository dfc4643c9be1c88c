-- lease/inspect: looks at who holds and who waits.
-- KEYS      see lib/lease, per run
-- ARGV      none
-- returns   now (µs); then per run: how much is held (-1: a key is of another type), when the next lease ends (µs, 0:
--           unknown), how many wait
-- writes    takes away what has expired, and cuts what lasts for longer than it may: no more than time does
kind.more()
if kind.read then kind.read() end
return lease.each(3, function()
  if kind.sweep then kind.sweep() end
  return kind.used(), kind.soonest(), lease.ahead(kind.counts)
end)
