-- permits: a limited number at once. The holders are a ZSET, token -> expiry (µs). A token ends in `/weight/limit`,
-- and perhaps its order, see lib/settings. What is heavier than the limit holds alone. By a limit of 0 nothing holds.
-- The member `excess` of the same ZSET has the score 2^52 plus the sum of weight - 1 over all holders; it is
-- absent while that sum is 0. So holders and sum are evicted together. There is no mark. A token that ends in `/idle`
-- waits in the last rank until there is no holder, and takes no permit.
-- A holder in another form, as a later version may write it, counts as one.
local set, swept, count -- its holders, whether expired ones are removed, the sum of weights (nil: unknown)
local written, digits -- the expiry that was written last
local lasts -- when the key of the holders expires (ms from now), if known; -2: there is none
local longest = 2 * 24 * 3600 * 1000 -- its ttl (ms): twice the longest ttl of a lease

function kind.begin()
  if holders ~= set then set, swept, count, lasts = holders, false, nil, nil end
end

-- Returns its weight and limit, if it has them.
local function size(token)
  local weight, limit = string.match(token, '^[^/]*/(%d+)/(%d+)%f[/%z]', 18)
  if weight then return tonumber(weight), tonumber(limit) end
end

local function drop(token)
  if call('ZREM', holders, token) == 0 then return false end
  local weight = size(token) or 1
  if weight == 1 then
    count = count and count - 1
    return true
  end
  local sum = tonumber(call('ZINCRBY', holders, 1 - weight, 'excess'))
  if sum <= lift then call('ZREM', holders, 'excess') end
  count = sum >= lift and count and count - weight or nil -- else it was forged
  return true
end

local function sweep()
  if swept then return end
  local expired = call('ZRANGEBYSCORE', holders, '-inf', string.format('%d.5', now), 'WITHSCORES')
  for i = 1, #expired, 2 do
    drop(expired[i]) -- before `lapse`, which adds, so that it passes if the server is out of memory
    if lease then lease.lapse(expired[i], tonumber(expired[i + 1])) end
  end
  swept = true
end

local function used()
  if not count then
    count = call('ZCARD', holders)
    local excess = count > 0 and call('ZSCORE', holders, 'excess')
    local more = excess and tonumber(excess) - lift or 0
    if excess then count = count > 1 and count - 1 + math.max(more, 0) or 0 end
    if more < 0 then call('ZREM', holders, 'excess') end -- it was forged
    if excess and count == 0 then call('DEL', holders) end -- the holders were deleted by hand
  end
  return count
end

-- Expired holders count as well. They are removed where there is no room.
function kind.free(token)
  local weight, limit = size(token)
  if used() == 0 then return not weight or limit > 0 end
  return weight and count + weight <= limit and not call('ZSCORE', holders, token)
end

function kind.hold(token, expiry, granted)
  local weight = size(token)
  if not weight then return 0 end
  local first = used() == 0
  if expiry ~= written then written, digits = expiry, string.format('%d', expiry) end
  call('ZADD', holders, granted and lease.granted(expiry) or digits, token)
  count = count + weight
  -- The key of holders that are never all gone is renewed long before it could expire earlier than a lease.
  lasts = not first and (lasts or call('PTTL', holders)) or 0
  if lasts < 0.75 * longest then
    lasts = longest
    call('PEXPIRE', holders, longest)
  end
  if weight > 1 and call('ZADD', holders, 'NX', string.format('%d', lift + weight - 1), 'excess') == 0 then
    call('ZINCRBY', holders, weight - 1, 'excess')
  end
  return 0
end

function kind.forget(token)
  sweep()
  return drop(token)
end

function kind.more()
  new_lease()
  kind.classes, kind.counts = true, 7 -- waiters of the rank after this take no permit
  kind.sweep, kind.used, kind.expires, kind.soonest = sweep, used, lease.expires, lease.soonest
  kind.confirm = lease.confirm

  function kind.fits(token, rank)
    local weight, limit = size(token)
    if not weight or used() == 0 then return used() == 0 and not kind.is_closed(token, rank) end
    return used() + weight <= kind.limit_for(token, rank, limit)
  end

  function kind.is_closed(token, rank)
    local weight, limit = size(token)
    return weight and kind.limit_for(token, rank, limit) == 0
  end

  function kind.fence()
    return 0
  end

  function kind.list(most)
    local weights = call('ZCOUNT', holders, string.format('(%d.5', now), '(4503599627370496')
    local excess = weights > 0 and call('ZSCORE', holders, 'excess')
    if excess then
      weights = weights + math.max(tonumber(excess) - lift, 0)
      for _, token in ipairs(call('ZRANGEBYSCORE', holders, '-inf', string.format('%d.5', now))) do
        weights = weights + 1 - (size(token) or 1)
      end
    end
    return weights, lease.list(most, 0)
  end

  function kind.extend(token, expiry)
    -- In this order: a server that is out of memory refuses a script's ZADD before another write.
    call('PEXPIRE', holders, longest)
    call('ZADD', holders, expiry, token)
  end
end
