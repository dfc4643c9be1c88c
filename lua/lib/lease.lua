-- lease: what is held for a while: the keys of one run, and how times are written.
-- KEYS      per run: holders (mutex: the lock), mark (fence; permits: excess; answer; filter), queue (LIST of tokens:
--           who waits), beats (ZSET: each that waits -> until when it counts as alive, µs; and each that was
--           withdrawn -> until when that is remembered, lifted by 2^52), then where there are two queues second (LIST:
--           who goes after those in the queue), else what the kind adds
-- A token is 16 characters that name its process, `+` where that certainly hears what is published or `-`, a
-- number, `.` and its time to live (µs, hexadecimal) where grants to it stand for no longer, and what the kind adds.
-- Numbers go into commands as they are: Redis writes whole ones below 2^53 exactly.
local call, find, match, sub = redis.call, string.find, string.match, string.sub
local holders, mark, queue, beats, fifth, sixth, second
local two = false -- whether there are two queues
local asker, heard -- the token that asks, and what was granted to its process in this run
-- What a kind has on record of a key besides. `look` returns what it finds, and whether that leaves nothing to do (false:
-- not for those who would have to wait; nil: that changes nothing), for those who insist only what keeps them from it
-- as well; `enter` writes it, and returns what keeps it from that, and whether it has: true,
-- or what is to be told to those who wait. Both read their arguments from
-- ARGV[at] on, and move `at` past them before they can fail; `scope` more, from ARGV[base] on, are for all runs.
local look, enter, at, base
local found -- by this run
local scope = 0
local day, lift = 86400000, 4503599627370496 -- ms: the longest time to live; 2^52

-- A span as a time to live: ms, rounded up.
local ceil = math.ceil
local function ms(micros)
  return ceil(micros / 1000)
end

-- Makes a lease that ends at `expiry` last for `ttl` from now on, by the kind's `extend`, unless it ends later; until when
-- it lasts then.
local function prolong(extend, token, expiry, ttl)
  if expiry >= now + ttl then return expiry end
  extend(token, now + ttl)
  return now + ttl
end

-- A whole number that a key holds, 0 where it holds nothing.
local function whole(text)
  if not text then return 0 end
  if type(text) == 'number' then return text end
  if #text > 16 or not find(text, '^%d+$') then error('WRONGTYPE of a number', 0) end
  return tonumber(text)
end

-- Answers each run, of so many keys, with the 2 or 4 values that `step` returns for it, what it was granted where
-- `width` is 5 or more, and what it found where that is 6; with -1 where a key is of another type, or holds
-- no number where one belongs, which leaves the other runs alone.
local function each(keys, width, step)
  local reply, n = {now}, 1
  for run = 1, #KEYS / keys do
    holders, mark, queue, beats, fifth, sixth = unpack(KEYS, keys * (run - 1) + 1, keys * run)
    second, heard, found = two and fifth, nil, nil
    local ok, first, time, third, fourth = pcall(step, run)
    if not ok then
      local text = type(first) == 'table' and first.err or first
      if not (find(text, 'WRONGTYPE', 1, true) or find(text, 'not an integer', 1, true)) then return {err = text} end
      first, time = -1, 0
    end
    reply[n + 1], reply[n + 2] = first, time or 0
    if width > 2 then reply[n + 3], reply[n + 4] = third or 0, fourth or 0 end
    if width > 4 then reply[n + 5] = heard or 0 end
    if width > 5 then reply[n + 6] = found or 0 end
    n = n + width
  end
  return reply
end
