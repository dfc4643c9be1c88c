-- lease/beat: says that waiters are alive, and asks what has become of them.
-- KEYS      see lib/lease, one run
-- ARGV      see lib/queue; then ttl (µs), and the tokens
-- returns   now (µs); when the next lease ends (µs, 0: unknown); a list, for each token: 1 and expiry (µs), fence:
--           held, with a full lease; 2, 0, 0: it waits; 0, 0, 0: neither
-- writes    the places, until they no longer beat; leases granted, with a time to live; the mark
return each(1, 2, function()
  local ttl, asking, alive = tonumber(ARGV[4]), {}, {}
  sweep()
  drop_dead()
  local tickets = call('ZMSCORE', queue, unpack(ARGV, 5))
  for i, ticket in ipairs(tickets) do
    if ticket then
      asking[ARGV[i + 4]] = 'waits'
      alive[#alive + 1] = int(now + life)
      alive[#alive + 1] = ARGV[i + 4]
    end
  end
  if #alive > 0 then
    call('ZADD', beats, unpack(alive))
    keep_queue()
  end
  grant(asking, ttl)
  local list = {}
  for i = 5, #ARGV do
    local now_is, expiry, fence = asking[ARGV[i]], 0, 0
    if now_is == 'waits' then
      now_is = 2
    elseif now_is then
      now_is, expiry, fence = 1, now + ttl, now_is
    else
      expiry, fence = held(ARGV[i])
      if expiry then extend(ARGV[i], now + ttl) end
      now_is, expiry = expiry and 1 or 0, expiry and now + ttl or 0
    end
    list[#list + 1], list[#list + 2], list[#list + 3] = now_is, expiry, fence or 0
  end
  return soonest(), list
end)
