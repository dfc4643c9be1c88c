-- rw_lock: who holds is a ZSET, token -> expiry (µs): readers of one group, or one writer. A token ends in `/r`
-- and the group, or in `/w` and how many writers in a row may go before readers that wait. The mark is `fence row`:
-- the fencing token, and how many writers in a row went before readers that waited.
local function mode(token)
  return match(token, '/([rw].*)$')
end

local function writes(token)
  return match(token, '/w(%d+)$')
end

local function marked()
  local fence, row = match(call('GET', mark) or '', '^(%d+) (%d+)$')
  return tonumber(fence or 0), tonumber(row or 0)
end

local function used()
  return call('ZCARD', holders)
end

local turn -- whether it is the turn of the readers that wait

local function sweep()
  turn = false
  call('ZREMRANGEBYSCORE', holders, '-inf', int(now))
end

local function held(token)
  local expiry = tonumber(call('ZSCORE', holders, token) or 0)
  if expiry <= now then return nil end
  return expiry, writes(token) and (marked()) or 0
end

local function fits(token)
  local holder = call('ZRANGE', holders, 0, 0)[1]
  return not holder or (not writes(token) and mode(holder) == mode(token))
end

local function extend(token, expiry)
  call('ZADD', holders, int(expiry), token)
  keep()
end

local function first_reader()
  return call('ZRANGEBYSCORE', queue, lift, '+inf', 'LIMIT', 0, 1)[1]
end

local function hold(token, expiry)
  extend(token, expiry)
  local last, row = marked()
  if not writes(token) then
    if row > 0 then call('SET', mark, int(last) .. ' 0', 'PX', remembered) end
    return 0
  end
  local fence = math.max(last + 1, now)
  row = first_reader() and row + 1 or 0
  call('SET', mark, int(fence) .. ' ' .. int(row), 'PX', remembered)
  return fence
end

local function forget(token)
  return call('ZREM', holders, token) == 1
end

local function soonest()
  return tonumber(call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] or 0)
end

local function head()
  local first = call('ZRANGE', queue, 0, 0)[1]
  local most = first and writes(first)
  if not most then return first end
  local _, row = marked()
  turn = turn or row >= tonumber(most)
  return turn and first_reader() or first
end
