-- lease/holders: returns the holders and the number of waiters, unchanged.
-- KEYS      see lib/lease, one run
-- ARGV      how many holders to return at most
-- returns   now (µs); the sum of weights held (-1: a key is of another type); how many waiters there are; a list, for
--           each holder, the one whose lease ends first at the front: its token, expiry (µs), fence
-- writes    nothing
kind.more()
return lease.each(3, function()
  local sum, list = kind.list(tonumber(ARGV[1]))
  return sum, lease.ahead(kind.counts), list
end)
