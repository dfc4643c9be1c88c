-- mutex: the holder is a string with a time to live, as SET NX PX makes it, so that locks of others count.
-- Its value is the token, or what follows `:` in it. The mark is the fencing token.
local holder -- what the lock of this run holds, false for nothing

local function value(token)
  return match(token, ':(.*)$') or token
end

local function sweep()
  holder = call('GET', holders)
end

local function used()
  return holder and 1 or 0
end

-- When the lock ends; 0: nobody holds it, or it has no end.
local function soonest()
  local left = holder and call('PTTL', holders) or 0
  return left > 0 and now + left * 1000 or 0
end

local function held(token)
  if holder ~= value(token) then return nil end
  return soonest(), tonumber(call('GET', mark) or 0)
end

local function fits()
  return not holder
end

-- The fence is above all before, and above what a server that has forgotten them may have given out.
local function hold(token, expiry)
  holder = value(token)
  call('SET', holders, holder, 'PX', ms(expiry - now))
  local last = tonumber(call('SET', mark, int(now), 'PX', remembered, 'GET') or 0)
  if last < now then return now end
  call('SET', mark, int(last + 1), 'PX', remembered)
  return last + 1
end

local function extend(_, expiry)
  call('PEXPIRE', holders, ms(expiry - now))
end

local function forget(token)
  if holder ~= value(token) then return false end
  holder = false
  call('DEL', holders)
  return true
end

local function head()
  return call('ZRANGE', queue, 0, 0)[1]
end
