-- queue: who waits, in the order of tickets, and how what has become free is granted to them.
-- ARGV[1] is what the names of channels begin with, ARGV[2] for how long a grant stands until its waiter
-- confirms it (µs), ARGV[3] for how long a waiter counts as alive after a beat (µs).
local channel, claim, life = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local function leave(token)
  if call('ZREM', queue, token) == 0 then return false end
  call('ZREM', beats, token)
  return true
end

local function drop_dead()
  for _, token in ipairs(call('ZRANGEBYSCORE', beats, '-inf', int(now), 'LIMIT', 0, 1000)) do leave(token) end
end

-- Makes a waiter a holder and tells its process. One that nobody hears has lost its place.
local function hand_over(token)
  local expiry = now + claim
  local fence = hold(token, expiry)
  local text = int(expiry) .. ' ' .. int(fence) .. ' ' .. token
  local heard = call('PUBLISH', channel .. sub(token, 1, 16), text)
  if heard == 0 and sub(token, 17, 17) == '+' then forget(token) end
end

-- Grants while the first in the queue fits. Those among `asking` get `ttl` and hear of it in the reply: each that is
-- granted has its fence there.
local function grant(asking, ttl)
  drop_dead()
  local token = head()
  while token and fits(token) do
    leave(token)
    if asking and asking[token] then asking[token] = hold(token, now + ttl) else hand_over(token) end
    token = head()
  end
end

-- How many wait that go before one of a rank.
local function ahead(rank)
  return call('ZCOUNT', queue, '-inf', '(' .. int((rank + 1) * lift))
end

-- Puts a token at the end of its rank.
local function line_up(token, rank)
  local last = call('ZREVRANGEBYSCORE', queue, '(' .. int((rank + 1) * lift), int(rank * lift),
    'WITHSCORES', 'LIMIT', 0, 1)[2]
  local ticket = rank * lift + now
  if last and tonumber(last) >= ticket then ticket = last + 1 end
  call('ZADD', queue, int(ticket), token)
  call('ZADD', beats, int(now + life), token)
end

-- Keeps the queue while anybody in it may be alive.
local function keep_queue()
  call('PEXPIRE', queue, ms(2 * life))
  call('PEXPIRE', beats, ms(2 * life))
end
