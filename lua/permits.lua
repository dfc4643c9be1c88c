-- permits: a limited number of holders at once. The holders are a ZSET, token -> expiry (µs). A token ends in
-- `/weight/limit`, and optionally its order, see settings. A weight above the limit holds alone. With a limit of 0
-- nothing holds. The member `excess` of the same ZSET has the score 2^52 plus the sum of weight - 1 over all holders;
-- it is absent while that sum is 0. So holders and sum are evicted together. The mark is used only for the order of the
-- waiters. A token that ends in `/idle` waits in the last rank until there is no holder, and takes no permit.
-- A holder in another form, which a later version may write, counts as one.
-- The state has `count`, the sum of weights (nil: unknown); `swept`, whether expired holders were removed; `lasts`,
-- when the key of the holders expires (ms from now), if known.
permits = {
  timed = true, classes = true, counts = 7, -- waiters of the rank after this take no permit
  expires = holders.expires, soonest = holders.soonest, confirm = holders.confirm,
}
local longest = 172800000 -- the ttl of the holders (ms), two days: twice the longest ttl of a lease

-- Returns the weight and the limit of a token, if it has them.
function permits.size(text)
  local weight, limit = match(text, '^[^/]*/(%d+)/(%d+)%f[/%z]', 18)
  if weight then return weight + 0, limit + 0 end
end

function permits.fence()
  return 0
end

-- Removes a holder. Returns whether it existed, and its weight; nil: the remaining sum is unknown.
local function drop(lock, text)
  if call('ZREM', lock, text) == 0 then return false end
  if find(text, '/1/', 18, true) == find(text, '/', 18, true) then return true, 1 end
  local weight = permits.size(text) or 1
  local sum = number(call('ZINCRBY', lock, 1 - weight, 'excess'))
  if sum <= lift then call('ZREM', lock, 'excess') end
  return true, sum >= lift and weight or nil -- else it was forged
end

-- Removes the holders whose leases have expired, once for each key.
local function sweep(c, lock, now)
  if c and c.swept then return end
  local expired = holders.expired(lock, now)
  for i = 1, #expired, 2 do
    drop(lock, expired[i]) -- before `lapse`, which adds: then `lapse` works even if the server is out of memory
    if c then holders.lapse(c, expired[i], number(expired[i + 1])) end
  end
  if c then c.swept = true end
  if c and expired[1] then c.count = nil end
end

function permits.sweep(c)
  sweep(c, c.lock, c.now)
end

-- Returns the sum of the weights of the holders.
local function count(lock)
  local all = call('ZCARD', lock)
  local excess = all > 0 and call('ZSCORE', lock, 'excess')
  if not excess then return all end
  local more = number(excess) - lift
  all = all > 1 and all - 1 + max(more, 0) or 0
  if more < 0 then call('ZREM', lock, 'excess') end -- it was forged
  if all == 0 then call('DEL', lock) end -- the holders were deleted by hand
  return all
end

function permits.used(c)
  if not c.count then c.count = count(c.lock) end
  return c.count
end

function permits.free(c)
  return permits.used(c) == 0
end

-- Adds a holder to those whose weights are `used`. Returns its fence; nil: it already holds.
local function put(c, lock, used, text, weight, score, option)
  if option then
    local added = attempt('ZADD', lock, option, score, text)
    local is_refused = added ~= 1 and type(added) == 'table'
    if added == 0 or is_refused and call('ZSCORE', lock, text) then return nil end
    if is_refused then error(added.err, 0) end
  else
    call('ZADD', lock, score, text)
  end
  -- If there are always holders, the ttl of the key is renewed long before the key could expire earlier than a lease.
  local lasts = used == 0 and 0 or c and c.lasts or call('PTTL', lock)
  if lasts < 0.75 * longest then
    lasts = longest
    call('PEXPIRE', lock, '172800000')
  end
  if c then c.count, c.lasts = used + weight, lasts end
  if weight > 1 and call('ZADD', lock, 'NX', format('%d', lift + weight - 1), 'excess') == 0 then
    call('ZINCRBY', lock, weight - 1, 'excess')
  end
  return 0
end

-- Expired holders count as well. They are removed if there is no free permit.
function permits.take(c, _, lock, _, text, now, ttl)
  local weight, limit = permits.size(text)
  local used = c and permits.used(c) or count(lock)
  if not weight then return used == 0 and 0 or nil end
  if used + weight > limit and (used > 0 or limit == 0) then return nil end
  return put(c, lock, used, text, weight, format('%d', now + ttl), 'NX')
end

function permits.hold(c, text, expiry, granted)
  local weight = permits.size(text)
  return weight and put(c, c.lock, permits.used(c), text, weight, holders.score(expiry, granted)) or 0
end

function permits.forget(c, lock, _, text, now)
  sweep(c, lock, now)
  local was, weight = drop(lock, text)
  if was and c then c.count = weight and c.count and c.count - weight end
  return was
end

function permits.fits(c, text, rank)
  local weight, limit = permits.size(text)
  local used = permits.used(c)
  if not weight or used == 0 then return used == 0 and not permits.is_closed(c, text, rank) end
  return used + weight <= permits.limit(c, text, rank, limit)
end

function permits.is_closed(c, text, rank)
  local weight, limit = permits.size(text)
  return weight and permits.limit(c, text, rank, limit) == 0
end

function permits.list(c, most)
  local weights = holders.count(c)
  local excess = weights > 0 and call('ZSCORE', c.lock, 'excess')
  if excess then
    weights = weights + max(number(excess) - lift, 0)
    local expired = holders.expired(c.lock, c.now)
    for i = 1, #expired, 2 do weights = weights + 1 - (permits.size(expired[i]) or 1) end
  end
  return weights, holders.list(c, most, 0)
end

function permits.extend(c, text, expiry)
  -- In this order: a server that is out of memory refuses a script's ZADD before another write.
  call('PEXPIRE', c.lock, longest)
  call('ZADD', c.lock, expiry, text)
end

kinds.permits = {holders = permits, keys = 4, zero_fence = true, ttl = 4, looks = 1}
