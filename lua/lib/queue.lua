-- queue: who waits, in the order of arrival, and how what has become free is granted to them. Whoever no longer
-- beats is passed over when it is its turn.
-- ARGV[1] is what the names of channels begin with, ARGV[2] for how long a grant stands until its waiter
-- confirms it (µs), ARGV[3] for how long a waiter counts as alive after a beat (µs), ARGV[4] for how long it is
-- remembered that a token was withdrawn (µs).
local channel, claim, life, mourning = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local below = '(' .. string.format('%d', lift) -- the beats of those who wait end here

-- How many wait before a token; nil or false: it has no place.
local function place(token)
  return call('LPOS', queue, token) or second and call('LPOS', second, token)
end

-- Takes a token out of where it waits; false if it does not.
local function leave(token)
  local until_when = tonumber(call('ZSCORE', beats, token) or lift)
  if until_when >= lift then return false end
  call('ZREM', beats, token)
  if call('LREM', queue, 1, token) == 0 and second then call('LREM', second, 1, token) end
  return true
end

-- Keeps the queue while anybody in it may be alive, and what was withdrawn.
local function keep()
  call('PEXPIRE', beats, ms(mourning))
  call('PEXPIRE', queue, ms(mourning))
  if second then call('PEXPIRE', second, ms(mourning)) end
end

-- Whether a process hears what is published to it, as far as is known. It is asked before anything is granted, and
-- a grant is never taken back: a message may reach who was not counted.
local function hears(token)
  if sub(token, 17, 17) ~= '+' then return true end
  local process = sub(token, 1, 16)
  return (asker and process == sub(asker, 1, 16)) or call('PUBSUB', 'NUMSUB', channel .. process)[2] > 0
end

local function number(token)
  return tonumber(match(token, '^%x+', 18), 16)
end

-- Tells a process something: in the reply, if that is who asks.
local function tell(process, text)
  if asker and process == sub(asker, 1, 16) then
    heard = heard or {}
    heard[#heard + 1] = text
  else
    call('PUBLISH', channel .. process, text)
  end
end

-- For how long a grant to a waiter stands: no longer than its own time to live.
local function stands(token)
  local short = match(token, '^%x+%.(%x+)', 18)
  return short and math.min(tonumber(short, 16), claim) or claim
end

-- Makes a waiter a holder and tells its process. The message: expiry (µs), fence, number, and the numbers of those
-- who follow.
local function hand_over(token)
  local expiry = now + stands(token)
  local followers, count = follow(token)
  local fence = hold(token, expiry, count)
  tell(sub(token, 1, 16), string.format('%d %d %d', expiry, fence, number(token)) .. followers)
end

-- Empties the queue: those who wait are to ask anew, unless they are told all there is to know. The message: 0, 0, their
-- numbers, and on another line what they are told.
local function dismiss(told)
  local processes, numbers = {}, {}
  for _, token in ipairs(call('LRANGE', queue, 0, -1)) do
    local process = sub(token, 1, 16)
    if not numbers[process] then
      processes[#processes + 1], numbers[process] = process, '0 0'
    end
    numbers[process] = numbers[process] .. string.format(' %d', number(token))
  end
  if #processes == 0 then return end
  call('DEL', queue)
  call('ZREMRANGEBYSCORE', beats, '-inf', below)
  local text = type(told) == 'string' and '\n' .. told or ''
  for _, process in ipairs(processes) do tell(process, numbers[process] .. text) end
end

-- Grants while the first in the queue fits. Those among `asking` get `ttl` and hear of it in the reply: each that is
-- granted has its fence there. Whoever no longer beats, or cannot hear, has lost its place.
local function grant(asking, ttl)
  if sweep() then return end
  local token, line, turn
  repeat
    token, line, turn = head(turn)
    if not token then return end
    local asks = asking and asking[token]
    local alive = asks or (tonumber(call('ZSCORE', beats, token) or 0) > now and hears(token))
    if alive and not fits(token) then return end
    call('ZREM', beats, token)
    call('LPOP', line)
    if asks then
      asking[token] = hold(token, now + ttl)
    elseif alive then
      hand_over(token)
    end
  until alive and alone
end
