-- lease/inspect: looks at who holds and who waits.
-- KEYS      see lib/lease, per run
-- ARGV      none
-- returns   now (µs); then per run: how much is held, when the next lease ends (µs, 0: unknown), how many wait, 0
-- writes    takes away what has expired: no more than time does
prefetch()
return each(keys, 4, function()
  sweep()
  return used(), soonest(), counted()
end)
