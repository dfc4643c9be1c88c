-- permits: so many at once. The holders are a ZSET, token -> expiry (µs); a token ends in `/weight/limit`. The mark is
-- the sum of what weights are above 1 (string, absent for 0). A token in `/idle` waits until nobody holds, in the second
-- queue, and holds nothing.
kind.keys, kind.two = 5, true

local function size(token)
  local weight, limit = string.match(token, '/(%d+)/(%d+)$')
  return tonumber(weight), tonumber(limit)
end

local function drop(token)
  if call('ZREM', holders, token) == 0 then return false end
  local weight = size(token)
  if weight > 1 and call('INCRBY', mark, 1 - weight) <= 0 then call('DEL', mark) end
  return true
end

local function sweep()
  for _, token in ipairs(call('ZRANGEBYSCORE', holders, '-inf', now)) do drop(token) end
end

function kind.free(token)
  local weight, limit = size(token)
  return call('EXISTS', holders) == 0 and (not weight or weight <= limit)
end

function kind.hold(token, expiry, free)
  local weight = size(token)
  if not weight then return 0 end
  local first = free or call('EXISTS', holders) == 0
  if first then call('DEL', mark) end -- what a set that has expired as a whole left behind counts no more
  call('ZADD', holders, expiry, token)
  if first then call('PEXPIRE', holders, 2 * 24 * 3600 * 1000) end
  if weight > 1 then
    call('INCRBY', mark, weight - 1)
    call('PEXPIRE', mark, 3 * 24 * 3600 * 1000)
  end
  return 0
end

function kind.forget(token)
  sweep()
  return drop(token)
end

function kind.more()
  new_lease()
  kind.counts = 0 -- those in the second queue are to hold nothing
  kind.sweep, kind.expires, kind.soonest = sweep, lease.expires, lease.soonest

  function kind.used()
    local count = call('ZCARD', holders)
    return count == 0 and 0 or count + whole(call('GET', mark))
  end

  function kind.fits(token)
    local weight, limit = size(token)
    if not weight then return call('EXISTS', holders) == 0 end
    return kind.used() + weight <= limit
  end

  function kind.fence()
    return 0
  end

  function kind.extend(token, expiry)
    call('ZADD', holders, expiry, token)
    call('PEXPIRE', holders, 2 * 24 * 3600 * 1000)
    call('PEXPIRE', mark, 3 * 24 * 3600 * 1000)
  end
end
