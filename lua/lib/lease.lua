-- lease: what is held for a while: the keys of one run, and how times are written.
-- KEYS come in fives: holders (mutex: the lock), mark (fence; permits: excess), queue (ZSET, token -> ticket),
-- beats (ZSET, token -> until when it counts as alive, µs), gone (ZSET, withdrawn token -> until, µs).
-- A token is 16 characters that name its process, `+` where that certainly hears what is published or `-`, a
-- number, and what the kind of lease adds.
local call, format, match, sub = redis.call, string.format, string.match, string.sub
local holders, mark, queue, beats, gone

local function open(run)
  holders, mark, queue, beats, gone = unpack(KEYS, 5 * run - 4, 5 * run)
end

local function int(number)
  return format('%d', number)
end

-- A span as a time to live: ms, rounded up.
local function ms(micros)
  return format('%d', (micros + 999) / 1000)
end

local lift = 4503599627370496 -- 2^52: tickets of the next rank lie this much higher
local remembered = 604800000 -- how long a fencing token is kept after its grant, ms: a week

-- Keeps the set of holders as long as the longest lease in it; returns for how long, ms.
local function keep()
  local last = call('ZREVRANGE', holders, 0, 0, 'WITHSCORES')[2]
  call('PEXPIRE', holders, ms(last - now))
  return ms(last - now)
end

-- Answers each of `count` runs with the `width` numbers that `step` returns for it; with -1 where a key is of
-- another type, which leaves the other runs alone.
local function each(count, width, step)
  local reply = {now}
  for run = 1, count do
    open(run)
    local answer = {pcall(step, run)}
    if not answer[1] then
      local text = type(answer[2]) == 'table' and answer[2].err or answer[2]
      if not string.find(text, 'WRONGTYPE', 1, true) then return {err = text} end
      answer[2] = -1
    end
    for i = 2, width + 1 do reply[#reply + 1] = answer[i] or 0 end
  end
  return reply
end
