-- lease/inspect: looks at who holds and who waits.
-- KEYS      see lib/lease, per run
-- ARGV      none
-- returns   now (µs); then per run: how much is held, how many wait, when the next lease ends (µs, 0: unknown)
-- writes    takes away what has expired: no more than time does
return each(#KEYS / 5, 3, function()
  sweep()
  return used(), call('ZCARD', queue), soonest()
end)
