-- lease/renew: renews leases. It never revives an expired lease, and never makes a lease shorter.
-- KEYS      see lib/lease, per run
-- ARGV      per run: token, ttl (µs), fence (the next fence will be higher than this; 0: no condition)
-- returns   now (µs); then per run: 1 and the expiry (µs), or 0 if the token holds no longer (-1: a key is of another
--           type)
-- writes    the lease and the mark, with a ttl
kind.more()
return lease.each(2, function(run)
  local token, ttl, fence = ARGV[3 * run - 2], tonumber(ARGV[3 * run - 1]), tonumber(ARGV[3 * run])
  local expiry = kind.expires(token)
  if not expiry then return 0 end
  if kind.fenced and fence > 0 then kind.raise(fence, token, expiry) end
  if expiry >= now + ttl then
    if kind.confirm then kind.confirm(token, expiry) end
    return 1, expiry
  end
  kind.extend(token, now + ttl)
  return 1, now + ttl
end)
