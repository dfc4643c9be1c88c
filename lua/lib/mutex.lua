-- mutex: the holder is a string with a time to live, as SET NX PX makes it, so that locks of others count.
-- Its value is the token, or what follows `:` in it. The mark is the fencing token, kept for a week after the last
-- grant: what it is worth tells on which day it was set to live for so long. Where it is not kept, since there are
-- too many keys, the mark is something else, and the fence the time of the grant.
local keys = 4
local alone = true -- whether one is all that can hold
local kept = true -- whether fences outlive their holders
local values, released = {}, nil -- by name: locks and marks; locks to be deleted

-- Reads the locks and marks of all runs in one command.
local function prefetch()
  local names = {}
  for i = 1, #KEYS, keys do
    names[#names + 1] = KEYS[i]
    if kept then names[#names + 1] = KEYS[i + 1] end
  end
  local read = call('MGET', unpack(names))
  for i, name in ipairs(names) do values[name] = read[i] end
end

-- Drops what has expired: here Redis does. Whether nothing is free then, for anybody.
local function sweep()
  return values[holders]
end

local function used()
  return values[holders] and 1 or 0
end

-- When the lock ends; 0: nobody holds it, or it has no end.
local function soonest()
  local left = values[holders] and call('PTTL', holders) or -1
  return left < 0 and 0 or now + math.max(left, 1) * 1000
end

-- What the lock holds for a token.
local function value(token)
  local colon = find(token, ':', 17, true)
  return colon and sub(token, colon + 1) or token
end

-- Whether a token holds.
local function holds(token)
  local holder = values[holders]
  return holder and (holder == token or holder == value(token))
end

-- Until when; nil: it holds not.
local function expires(token)
  return holds(token) and soonest() or nil
end

-- Until when, and its fence.
local function held(token)
  local expiry = expires(token)
  return expiry, expiry and kept and whole(values[mark]) or now
end

local function fits()
  return not values[holders]
end

-- The fence is above all before, and above what a server that has forgotten them may have given out. Each of those who
-- hold after each other has one of its own.
local function hold(token, expiry, followers)
  local text, ttl, last = value(token), ms(expiry - now), kept and whole(values[mark]) or 0
  local fence = last < now and now or last + 1
  local latest, free, fresh = fence + (followers or 0), true, true
  if released and released[holders] then
    released[holders] = nil
    call('SET', holders, text, 'PX', ttl)
  else
    free = call('SET', holders, text, 'PX', ttl, 'NX')
  end
  values[holders] = text
  if kept then
    values[mark] = latest
    if last == 0 then
      fresh = call('SET', mark, latest, 'PX', 8 * day, 'NX')
    elseif latest - latest % (day * 1000) > last then
      call('SET', mark, latest, 'PX', 8 * day)
    else
      call('INCRBY', mark, latest - last)
    end
  end
  -- What reads as nothing and cannot be set is of another type.
  if not (free and fresh) then error('WRONGTYPE of a lock or its fence', 0) end
  return fence
end

local function extend(_, expiry)
  call('PEXPIRE', holders, ms(expiry - now))
end

local function forget()
  released = released or {}
  values[holders], released[holders] = false, true
end

-- How many wait to hold something.
local function counted()
  return call('LLEN', queue)
end

-- Who is to go first, and where it stands.
local function head()
  return call('LINDEX', queue, 0), queue
end

-- Takes out of the queue those who wait right behind a token in the same process, which hands the lock on to them
-- itself: their numbers, with spaces before them, and how many they are.
local function follow(token)
  if find(token, ':', 17, true) then return '', 0 end
  local behind, numbers = {}, ''
  for _, other in ipairs(call('LRANGE', queue, 0, 30)) do
    if sub(other, 1, 16) ~= sub(token, 1, 16) or find(other, ':', 17, true) then break end
    behind[#behind + 1] = other
    numbers = numbers .. string.format(' %d', tonumber(match(other, '^%x+', 18), 16))
  end
  if #behind > 0 then
    call('LTRIM', queue, #behind, -1)
    call('ZREM', beats, unpack(behind))
  end
  return numbers, #behind
end

-- Deletes in one command what was released and not granted anew.
local function finish()
  local names = {}
  for name in pairs(released or {}) do names[#names + 1] = name end
  if #names > 0 then call('DEL', unpack(names)) end
end
