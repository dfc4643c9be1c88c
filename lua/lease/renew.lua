-- lease/renew: makes leases last anew; never revives one, and never makes one shorter.
-- KEYS      see lib/lease, per run
-- ARGV      per run: token, ttl (µs)
-- returns   now (µs); then per run: 1 and its expiry (µs), or 0 where it is not held any more
-- writes    the lease, with a time to live
prefetch()
return each(keys, 2, function(run)
  local token, ttl = ARGV[2 * run - 1], tonumber(ARGV[2 * run])
  local expiry = expires(token)
  if not expiry then return 0 end
  return 1, prolong(extend, token, expiry, ttl)
end)
