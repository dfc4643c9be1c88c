-- permits: who holds is a ZSET, token -> expiry (µs); a token ends in `/weight/limit`. The mark is the sum of
-- what weights are above 1 (string, absent for 0). A token in `/idle` waits until nobody holds, and holds nothing.
local keys = 5
two = true
local alone = false -- whether one is all that can hold

local function size(token)
  local weight, limit = match(token, '/(%d+)/(%d+)$')
  return tonumber(weight), tonumber(limit)
end

local function prefetch() end

local function used()
  local count = call('ZCARD', holders)
  return count == 0 and 0 or count + whole(call('GET', mark))
end

local function forget(token)
  if call('ZREM', holders, token) == 0 then return end
  local weight = size(token)
  if weight > 1 and call('INCRBY', mark, 1 - weight) <= 0 then call('DEL', mark) end
end

-- Drops those whose leases are over. Whether nothing is free then, for anybody: that depends on who asks.
local function sweep()
  for _, token in ipairs(call('ZRANGEBYSCORE', holders, '-inf', now)) do forget(token) end
  return false
end

-- Until when; nil: it holds not.
local function expires(token)
  local expiry = tonumber(call('ZSCORE', holders, token) or 0)
  return expiry > now and expiry or nil
end

local function held(token)
  return expires(token), 0
end

local function fits(token)
  local weight, limit = size(token)
  if not weight then return call('EXISTS', holders) == 0 end
  return used() + weight <= limit
end

local function hold(token, expiry)
  local weight = size(token)
  if not weight then return 0 end
  -- What a set that has expired as a whole left behind counts no more.
  local first = call('EXISTS', holders) == 0
  if first then call('DEL', mark) end
  call('ZADD', holders, expiry, token)
  if first then call('PEXPIRE', holders, 2 * day) end
  if weight > 1 then
    call('INCRBY', mark, weight - 1)
    call('PEXPIRE', mark, 3 * day)
  end
  return 0
end

local function extend(token, expiry)
  call('ZADD', holders, expiry, token)
  call('PEXPIRE', holders, 2 * day)
  call('PEXPIRE', mark, 3 * day)
end

-- When the next lease ends; 0: nobody holds.
local function soonest()
  return tonumber(call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] or 0)
end

local holds = expires

-- How many wait to hold something.
local function counted()
  return call('LLEN', queue)
end

-- Who is to go first, and where it stands.
local function head()
  local first = call('LINDEX', queue, 0)
  if first then return first, queue end
  return call('LINDEX', second, 0), second
end

-- Nobody hands on what several may hold.
local function follow()
  return '', 0
end

local function finish() end
