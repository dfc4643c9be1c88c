-- rw_lock: who holds is a ZSET, token -> expiry (µs): readers of one group, or one writer. A token ends in `/r`
-- and the group, or in `/w` and how many writers in a row may go before readers that wait. The mark is `fence row`:
-- the fencing token, and how many writers in a row went before readers that waited.
local keys = 5
two = true
local alone = false -- whether one is all that can hold

local function prefetch() end

local function mode(token)
  return match(token, '^[^/]*/(.*)$')
end

local function writes(token)
  return match(token, '^[^/]*/w(%d+)$')
end

local function marked()
  local fence, row = match(call('GET', mark) or '', '^(%d+) (%d+)$')
  return tonumber(fence or 0), tonumber(row or 0)
end

local function used()
  return call('ZCARD', holders)
end

-- Drops those whose leases are over. Whether nothing is free then, for anybody: that depends on who asks.
local function sweep()
  call('ZREMRANGEBYSCORE', holders, '-inf', now)
  return false
end

-- Until when; nil: it holds not.
local function expires(token)
  local expiry = tonumber(call('ZSCORE', holders, token) or 0)
  return expiry > now and expiry or nil
end

local function held(token)
  local expiry = expires(token)
  return expiry, expiry and marked()
end

local function fits(token)
  local holder = call('ZRANGE', holders, 0, 0)[1]
  return not holder or (not writes(token) and mode(holder) == mode(token))
end

local function extend(token, expiry)
  call('ZADD', holders, expiry, token)
  call('PEXPIRE', holders, 2 * day)
end

local function hold(token, expiry)
  extend(token, expiry)
  local last, row = marked()
  if not writes(token) then
    if row > 0 then call('SET', mark, string.format('%d 0', last), 'PX', 8 * day) end
    return last -- of the writer before
  end
  local fence = last < now and now or last + 1
  row = call('EXISTS', second) == 1 and row + 1 or 0
  call('SET', mark, string.format('%d %d', fence, row), 'PX', 8 * day)
  return fence
end

local function forget(token)
  call('ZREM', holders, token)
end

local function soonest()
  return tonumber(call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] or 0)
end

local holds = expires

-- How many wait to hold something.
local function counted()
  return call('LLEN', queue) + call('LLEN', second)
end

-- Who is to go first, and where it stands; and whether it is the turn of the readers that wait: once it is, it is
-- that of them all.
local function head(turn)
  local first, reader = call('LINDEX', queue, 0), call('LINDEX', second, 0)
  local most = first and writes(first)
  if not (most and reader) then return first or reader, first and queue or second end
  if not turn then
    local _, row = marked()
    turn = row >= tonumber(most)
  end
  if turn then return reader, second, true end
  return first, queue
end

-- Nobody hands on what several may hold.
local function follow()
  return '', 0
end

local function finish() end
