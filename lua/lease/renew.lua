-- lease/renew: makes leases last anew; never revives one, and never makes one shorter.
-- KEYS      see lib/lease, per run
-- ARGV      per run: token, ttl (µs), fence (the next one is to be higher; 0: whatever it is)
-- returns   now (µs); then per run: 1 and its expiry (µs), or 0 where it is not held any more
-- writes    the lease and the mark, with a time to live
kind.more()
if kind.read then kind.read() end
return lease.each(2, function(run)
  local token, ttl, fence = ARGV[3 * run - 2], tonumber(ARGV[3 * run - 1]), tonumber(ARGV[3 * run])
  local expiry = kind.expires(token)
  if not expiry then return 0 end
  if kind.fenced and fence > 0 then kind.raise(fence) end
  if expiry >= now + ttl then return 1, expiry end
  kind.extend(token, now + ttl)
  return 1, now + ttl
end)
