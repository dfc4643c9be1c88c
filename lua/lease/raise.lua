-- lease/raise: sees to it that the next fencing token of a mutex is above one that was given out elsewhere.
-- KEYS      see lib/lease, per run
-- ARGV      per run: token, fence
-- returns   now (µs); then per run: 1, or 0 where the token holds no longer; and 0
-- writes    the mark, with PX
prefetch()
return each(keys, 2, function(run)
  local token, fence = ARGV[2 * run - 1], tonumber(ARGV[2 * run])
  local expiry, last = held(token)
  if not expiry then return 0 end
  if last < fence then call('SET', mark, fence, 'PX', 8 * day) end
  return 1
end)
