-- lease/beat: says that waiters are alive, and asks what has become of them.
-- KEYS      see lib/lease, one run
-- ARGV      see lib/queue; then ttl (µs), and the tokens
-- returns   now (µs); when the next lease ends (µs, 0: unknown; -1: a key is of another type); a list, for each
--           token: 1 and expiry (µs), fence: held, with a full lease; 2, 0, 0: it waits; 0, 0, 0: neither
-- writes    the places, until they no longer beat; leases granted; the mark; all with a time to live
prefetch()
local reply = each(keys, 2, function()
  local ttl, asking, alive = tonumber(ARGV[5]), {}, {}
  -- Fewer places than who waits: lists were evicted, and whoever stood in one is to ask anew.
  local places = call('LLEN', queue) + (second and call('LLEN', second) or 0)
  local evicted = places < call('ZCOUNT', beats, '-inf', below)
  for i, beat in ipairs(call('ZMSCORE', beats, unpack(ARGV, 6))) do
    local token = ARGV[i + 5]
    if beat and tonumber(beat) < lift then
      if evicted and not place(token) then
        call('ZREM', beats, token)
      else
        asking[token] = 'waits'
        alive[#alive + 1], alive[#alive + 2] = now + life, token
      end
    end
  end
  if #alive > 0 then
    call('ZADD', beats, unpack(alive))
    keep()
  end
  grant(asking, ttl)
  local list = {}
  for i = 6, #ARGV do
    local token = ARGV[i]
    local status, expiry, fence = asking[token], 0, 0
    if status == 'waits' then
      status = 2
    elseif status then
      status, expiry, fence = 1, now + ttl, status
    else
      expiry, fence = held(token)
      status, expiry = expiry and 1 or 0, expiry and prolong(extend, token, expiry, ttl) or 0
    end
    list[#list + 1], list[#list + 2], list[#list + 3] = status, expiry, fence or 0
  end
  return soonest(), list
end)
finish()
return reply
