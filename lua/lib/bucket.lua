-- bucket: how the state of a token bucket is read, charged and written (GCRA, in exact integers).
-- ARGV[1] is the number of quotas; then per quota burst (tokens), num, den: a token every num/den
-- microseconds (num = 0: tokens never come back). `first` is where the script's own arguments start.
-- A state is a bare number where that says all: one quota, whole microseconds, nothing else to say; then
-- it is the theoretical arrival time (TAT, µs). Else it is a flat table: [1] blocked until (µs, 0: not),
-- then four numbers per quota:
--   whole, part   TAT: µs and den-ths of a µs; or tokens used, -1
--   last, rest    the latest TAT of reservations yet to act; only a cancellation leaves it above TAT
-- Stored as a bare number, as `whole part` where that says all, or as all numbers with spaces between.
-- A key expires at the end of the second in which its bucket is full and unblocked. So a bare number that
-- grows within one second (INCRBY) keeps its expiry.
local KEYS, ARGV, tonumber = KEYS, ARGV, tonumber
local call, floor, max, format = redis.pcall, math.floor, math.max, string.format
local quotas = tonumber(ARGV[1])
local first = 2 + 3 * quotas
local burst, num, den = {}, {}, {}
for q = 1, quotas do
  burst[q], num[q], den[q] = tonumber(ARGV[3 * q - 1]), tonumber(ARGV[3 * q]), tonumber(ARGV[3 * q + 1])
end
local bare = quotas == 1 and den[1] == 1 and num[1] > 0
local limit = 9007199254740992 -- 2^53: what is less is exact
local second = 1000000 -- µs

-- The expiry (PXAT, ms) of what is idle from `when` (µs) on.
local function pxat(when)
  return format('%d', (when - when % second + second) / 1000)
end

-- Returns the functions on states in table form: load, save, advance, tokens_in, span, later. Making them takes time
-- that most calls of reserve can save.
local function tables()
  -- A TAT, `tokens` later.
  local function advance(q, whole, part, tokens)
    local parts = part + tokens * (num[q] % den[q])
    local carry = floor(parts / den[q])
    return whole + tokens * floor(num[q] / den[q]) + carry, parts - carry * den[q]
  end

  -- How many whole tokens come in `span` µs less `part` den-ths of one; negative spans count backwards.
  local function tokens_in(q, span, part)
    local laps = floor(span / num[q])
    return laps * den[q] + floor(((span - laps * num[q]) * den[q] - part) / num[q])
  end

  -- The time that a full bucket takes to fill, in whole µs.
  local function span(q)
    return (advance(q, 0, 0, burst[q]))
  end

  local function later(whole, part, other, rest)
    return whole > other or (whole == other and part > rest)
  end

  -- The state that is stored as `raw` (nil or false: there is none); nil if that is none of ours.
  local function load(raw)
    local tat = raw and tonumber(raw) or 0
    local s = {0, tat, 0, tat, 0}
    if raw and not (tat > 0 and tat < limit) then
      s = {}
      local n = 0
      for number in string.gmatch(raw, '[^ ]+') do
        n = n + 1
        s[n] = tonumber(number)
        if not s[n] or s[n] >= limit or s[n] < -1 or s[n] % 1 ~= 0 then return nil end
      end
      if n == 2 then s = {0, s[1], s[2], s[1], s[2]} end
      if #s < 5 or #s % 4 ~= 1 then return nil end
    end
    for q = 1, quotas do
      local o = 4 * q - 2
      local never = num[q] == 0
      if not s[o + 3] or (s[o + 1] < 0) ~= never then
        s[o], s[o + 1], s[o + 2], s[o + 3] = 0, never and -1 or 0, 0, 0
      elseif not never then
        s[o + 1] = math.min(s[o + 1], den[q] - 1)
        s[o + 3] = math.min(s[o + 3], den[q] - 1)
      end
    end
    return s
  end

  -- Writes a state; returns what Redis answers. Of a key that MGET found nothing in, it is not
  -- known that it holds no other type (`unknown`): GET makes SET fail on one rather than overwrite it.
  local function save(key, s, unknown)
    local idle, forever = s[1], false
    if s[1] <= now then s[1] = 0 end
    for o = 2, #s, 4 do
      if s[o + 1] < 0 then
        forever = forever or s[o] > 0
      else
        idle = max(idle, s[o] + (s[o + 1] > 0 and 1 or 0), s[o + 2] + (s[o + 3] > 0 and 1 or 0))
      end
    end
    if not forever and idle <= now then return call('DEL', key) end
    local short = s[1] == 0 and #s == 5 and not later(s[4], s[5], s[2], s[3])
    local value
    if short then
      value = s[3] == 0 and format('%d', s[2]) or format('%d %d', s[2], s[3])
    else
      value = format(string.sub(string.rep(' %d', #s), 2), unpack(s))
    end
    if forever then
      if unknown then return call('SET', key, value, 'GET') end
      return call('SET', key, value)
    end
    if unknown then return call('SET', key, value, 'PXAT', pxat(idle), 'GET') end
    return call('SET', key, value, 'PXAT', pxat(idle))
  end

  return load, save, advance, tokens_in, span, later
end
