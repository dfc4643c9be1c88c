-- bucket: reads, charges and writes the state of a token bucket (GCRA, in exact integers).
-- ARGV[1]   if there is one quota: its numbers as they are stored, `num den burst`. Only lib/quick and lib/quick_hold need it
-- ARGV[2]   packed numbers, per quota: num, den, burst (tokens). One token comes every num/den microseconds (num = 0: tokens
--           never come back if den is 1, else at the start of a window; see lib/calendar)
-- first     the position of the script's own first argument
-- Packed numbers are a zero byte and big-endian doubles, which are read in a third of the time of a text. A server that does
-- not know a command tells its arguments, each up to a zero byte, and clients read errors as text.
-- A state is a flat table: [1] blocked until (µs, 0: not blocked), then seven numbers per level, first the levels of the
-- quotas, then those of the quotas of other calls:
--   whole, part       TAT: µs and den-ths of a µs; or if tokens never come back: used tokens, -1
--   last, rest        the latest TAT of pending reservations (not acted yet); above the TAT only after a cancellation
--   num, den, burst   the quota
-- The stored value is all numbers, separated by spaces; for one level and no other information only
-- `whole part num den burst`; see also lib/bare. A key expires at the end of the second in which its bucket is full and
-- unblocked.
-- What is held of a bucket stands behind the numbers, see lib/holds, which is joined before this.
-- A state that owed more than its bursts when it was written ends with that time (µs): it was blocked, reserved ahead, or
-- charged without a check. States with holds have it among these. If the clock is behind that time, it was set back: all
-- times of the state move back by as much. The other states never owe more than their bursts, which bounds them after
-- the clock was set back.
local KEYS, ARGV, tonumber = KEYS, ARGV, tonumber
local call, floor, max, min, format, sub = redis.pcall, math.floor, math.max, math.min, string.format, string.sub
local quotas, first
-- Per level: first the quotas, then the other quotas of the state that was loaded last.
local burst, num, den
local with_holds -- see lib/holds; nil if no state has holds

-- Reads the quotas that start at ARGV[at].
local function read_quotas(at)
  local numbers = ARGV[at + 1]
  quotas, burst, num, den = (#numbers - 1) / 24, {}, {}, {}
  for q = 1, quotas do num[q], den[q], burst[q] = struct.unpack('>ddd', numbers, 24 * q - 22) end
  first = at + 2
end

read_quotas(1)
local limit = 9007199254740992 -- 2^53: smaller integers are exact
local second = 1000000 -- µs
local longest = 2 ^ 50 -- µs: the longest time in which missing tokens come back, apart from reservations

-- The expiry (PXAT, ms) of a state that is idle from `when` (µs) on.
local function pxat(when)
  return format('%d', (when - when % second + second) / 1000)
end

-- Returns the functions on states in table form. They are created only on demand, because most calls of reserve do not
-- need them.
local function on_tables()
  -- Moves a TAT by `tokens` tokens.
  local function advance(q, whole, part, tokens)
    local parts = part + tokens * (num[q] % den[q])
    local carry = floor(parts / den[q])
    return whole + tokens * floor(num[q] / den[q]) + carry, parts - carry * den[q]
  end

  -- The number of whole tokens in `span` µs minus `part` den-ths of a µs. A negative span counts backwards.
  local function tokens_in(q, span, part)
    local laps = floor(span / num[q])
    return laps * den[q] + floor(((span - laps * num[q]) * den[q] - part) / num[q])
  end

  -- The time in which an empty bucket fills, in whole µs.
  local function span(q)
    return (advance(q, 0, 0, burst[q]))
  end

  -- (whole, part) minus (other, rest), in den-ths of quota q.
  local function minus(q, whole, part, other, rest)
    if part < rest then return whole - other - 1, part + den[q] - rest end
    return whole - other, part - rest
  end

  local function later(whole, part, other, rest)
    return whole > other or (whole == other and part > rest)
  end

  -- The TAT of the level at `o` when all its tokens are missing and none is owed.
  local function empty(s, o)
    local n, d, tokens = s[o + 4], s[o + 5], s[o + 6]
    local parts = tokens * (n % d)
    local carry = floor(parts / d)
    return now + tokens * floor(n / d) + carry, parts - carry * d
  end

  -- Whether a state owes more than its bursts.
  local function owes(s)
    if s[1] > now then return true end
    for o = 2, #s, 7 do
      if s[o + 4] > 0 then
        local most, rest = empty(s, o)
        if later(s[o], s[o + 1], most, rest) or later(s[o + 2], s[o + 3], most, rest) then return true end
      end
    end
    return false
  end

  -- Moves the times of a state that was written at `seen` (nil: it did not owe more than its bursts) if the clock was
  -- set back since. Returns whether it was.
  local function set_back(s, seen)
    if seen and seen <= now then return false end
    local moved = seen ~= nil
    if moved and s[1] > now then s[1] = max(now, s[1] - seen + now) end
    for o = 2, #s, 7 do
      for i = o, s[o + 4] > 0 and o + 2 or 0, 2 do
        local most, rest = empty(s, o)
        if seen and s[i] > now then
          s[i] = max(now, s[i] - seen + now)
        elseif not seen and later(s[i], s[i + 1], most, rest) then
          s[i], s[i + 1], moved = most, rest, true
        end
      end
    end
    return moved
  end

  -- The time from which a state is idle, so that deleting it changes nothing; nil if never.
  local function idle_from(s)
    local idle, h = s[1], s.holds
    if h then idle = max(idle, h.last) end
    for o = 2, #s, 7 do
      if s[o + 4] > 0 then
        local full = max(s[o] + (s[o + 1] > 0 and 1 or 0), s[o + 2] + (s[o + 3] > 0 and 1 or 0))
        if h then full = (with_holds or on_holds()).full_from(h, full, s[o + 4], s[o + 5]) end
        idle = max(idle, full)
      elseif s[o] > 0 or (h and h.captures > 0) then
        if s[o + 5] == 1 then return nil end
        idle = max(idle, calendar().idle_from(s, o, h))
      end
    end
    return idle
  end

  -- Converts a TAT of the level at `o` to quota q, so that the same number of tokens is missing.
  local function convert(s, o, whole, part, q)
    local tokens, rest = whole, 0
    local n, d = s[o + 4], s[o + 5]
    if n > 0 then
      if whole < now then whole, part = now, 0 end
      local laps = floor((whole - now) / n)
      local parts = (whole - now - laps * n) * d + part
      tokens = floor(parts / n)
      rest = (parts - tokens * n) / n
      tokens = laps * d + tokens
    end
    tokens = tokens - max(0, s[o + 6] - burst[q])
    if tokens < 0 then tokens, rest = 0, 0 end
    tokens = min(tokens, 1024 * burst[q])
    if num[q] == 0 then return tokens + (rest > 0 and 1 or 0), -1 end
    if tokens == 0 and rest == 0 then return 0, 0 end
    if tokens * (num[q] / den[q]) > longest then return now + longest, 0 end
    whole, part = advance(q, now, 0, tokens)
    part = part + math.ceil(rest * num[q])
    local carry = floor(part / den[q])
    return whole + carry, part - carry * den[q]
  end

  -- The level of a quota that is new to a state; see src/token_bucket/change.rs.
  local function take_over(s, q)
    local interval, from, best = num[q] > 0 and num[q] / den[q] or calendar().interval(den[q], burst[q]), nil, nil
    for o = 2, #s, 7 do
      local this = s[o + 4] > 0 and s[o + 4] / s[o + 5] or calendar().interval(s[o + 5], s[o + 6])
      local nearer = not from
      if from and this == best then
        nearer = later(s[o], s[o + 1], s[from], s[from + 1])
      elseif from and best >= interval then
        nearer = this >= interval and this < best
      elseif from then
        nearer = this > best
      end
      if nearer then from, best = o, this end
    end
    local whole, part = 0, num[q] == 0 and -1 or 0
    if from then whole, part = convert(s, from, s[from], s[from + 1], q) end
    if num[q] == 0 and den[q] > 1 then
      local number, used = calendar().taken_over(den[q], burst[q], whole, s, from)
      return used, -1, number, 0
    end
    if num[q] == 0 or not from then return whole, part, 0, 0 end
    if s[from + 4] > 0 and later(s[from + 2], s[from + 3], s[from], s[from + 1]) then
      return whole, part, convert(s, from, s[from + 2], s[from + 3], q)
    end
    return whole, part, whole, part
  end

  -- Returns the state with the levels of the quotas first, and whether a quota is new to it.
  local function fit(s)
    local fits, is_new = #s > 7 * quotas, false
    for q = 1, fits and quotas or 0 do
      local o = 7 * q - 5
      fits = fits and s[o + 4] == num[q] and s[o + 5] == den[q] and s[o + 6] == burst[q]
    end
    if not fits then
      local old, found = s, {}
      s = {old[1], holds = old.holds}
      for q = 1, quotas do
        local at
        for o = #old - 6, 2, -7 do
          if old[o + 4] == num[q] and old[o + 5] == den[q] and old[o + 6] == burst[q] then at, found[o] = o, true end
        end
        local n = #s
        if at then
          for i = 0, 3 do s[n + 1 + i] = old[at + i] end
        else
          is_new = is_new or #old > 1
          s[n + 1], s[n + 2], s[n + 3], s[n + 4] = take_over(old, q)
        end
        s[n + 5], s[n + 6], s[n + 7] = num[q], den[q], burst[q]
      end
      for o = 2, #old, 7 do
        if not found[o] and #s < 1 + 7 * 16 then
          for i = 0, 6 do s[#s + 1] = old[o + i] end
        end
      end
    end
    for q = quotas + 1, (#s - 1) / 7 do
      local o = 7 * q - 5
      num[q], den[q], burst[q] = s[o + 4], s[o + 5], s[o + 6]
    end
    return s, is_new
  end

  -- Fits a state to the quotas; an idle state becomes an empty one.
  local function rested(s)
    local idle = idle_from(s)
    if idle and idle <= now then s = {0} end
    return fit(s)
  end

  -- Returns the state stored as `raw` (nil or false: none), and whether it is not as it was stored: a quota is new to
  -- it, or the clock was set back; and whether holds have ended. Returns nil if `raw` is not a bucket.
  local function load(raw)
    if not raw then return fit({0}) end
    local s, n, bar, seen = {}, 0, string.find(raw, '|', 1, true), nil
    if bar then
      with_holds = with_holds or on_holds()
      s.holds, seen = with_holds.read(sub(raw, bar + 1))
      if not s.holds then return nil end
      raw = sub(raw, 1, bar - 1)
    end
    for number in string.gmatch(raw, '[^ ]+') do
      n = n + 1
      s[n] = tonumber(number)
      if not s[n] or s[n] >= limit or s[n] < -1 or s[n] % 1 ~= 0 then return nil end
    end
    if not seen and (n == 6 or n % 7 == 2) then seen = table.remove(s) end
    if #s == 5 then
      local last, rest = s[1], s[2]
      if s[3] == 0 then last, rest = 0, 0 end
      s = {0, s[1], s[2], last, rest, s[3], s[4], s[5], holds = s.holds}
    end
    if #s < 8 or #s % 7 ~= 1 or s[1] < 0 then return nil end
    local limited = false
    for o = 2, #s, 7 do
      if s[o + 4] < 0 or s[o + 5] < 1 or s[o + 6] < 1 or (s[o + 1] < 0) ~= (s[o + 4] == 0) then return nil end
      if min(s[o], s[o + 2], s[o + 3]) < 0 or max(s[o + 1], s[o + 3]) >= s[o + 5] then return nil end
      if s[o + 4] == 0 and s[o + 5] > 1 then
        local is_limited = calendar().read(s, o)
        if is_limited == nil then return nil end
        limited = limited or is_limited
      end
    end
    local moved, swept = set_back(s, seen), false
    if moved and s.holds and not with_holds.shift(s.holds, seen) then return nil end
    if s.holds and s.holds.next <= now then
      if not with_holds.sweep(s) then return nil end
      swept = not moved
    end
    moved = moved or limited
    local fitted, is_new = rested(s)
    return fitted, moved or is_new, swept
  end

  -- Writes a value with a ttl, or without one. `frees`: also if the server is out of memory. It then refuses SET as the first
  -- write of a script, and allows it after a write that frees memory.
  local function set(key, value, frees, ...)
    local saved = call('SET', key, value, ...)
    local is_full = type(saved) == 'table' and saved.err and string.find(saved.err, 'OOM', 1, true)
    if not (frees and is_full) then return saved end
    call('DEL', key)
    return call('SET', key, value, ...)
  end

  -- Writes a state and returns the reply of Redis. `unknown`: MGET found nothing in the key, so it may hold another
  -- type. Then GET makes SET fail on another type instead of overwriting it. `frees`: nothing was taken, see `set`.
  local function save(key, s, unknown, frees)
    local idle = idle_from(s)
    if s[1] <= now then s[1] = 0 end
    if idle and idle <= now then return call('DEL', key) end
    local value
    if s[1] == 0 and #s == 8 and not later(s[4], s[5], s[2], s[3]) and (s[6] > 0 or s[7] == 1) then
      value = format('%d %d %d %d %d', s[2], s[3], s[6], s[7], s[8])
    else
      value = format(sub(string.rep(' %d', #s), 2), unpack(s))
    end
    if s.holds then
      value = value .. '|' .. (with_holds or on_holds()).text(s.holds)
    elseif owes(s) then
      value = value .. format(' %d', now)
    end
    if not idle then
      if unknown then return call('SET', key, value, 'GET') end
      return set(key, value, frees)
    end
    if unknown then return call('SET', key, value, 'PXAT', pxat(idle), 'GET') end
    return set(key, value, frees, 'PXAT', pxat(idle))
  end

  -- Charges an amount of tokens, from `at` on; calendar quotas from `acts` on, if it is later.
  local function charge(s, at, amount, acts)
    for q = 1, (#s - 1) / 7 do
      local o, tokens, ours = 7 * q - 5, amount, q <= quotas
      -- Quotas of other calls are charged at most until they are used up.
      if not ours then tokens = min(tokens, burst[q]) end
      if num[q] == 0 and den[q] > 1 then
        calendar().charge(s, o, ours and acts or at, tokens, ours)
      elseif num[q] == 0 then
        s[o] = ours and s[o] + tokens or max(s[o], min(s[o] + tokens, burst[q]))
      else
        local pending = not ours or s[o + 2] - span(q) > now
        local whole, part = s[o], s[o + 1]
        if whole < at then whole, part = at, 0 end
        whole, part = advance(q, whole, part, tokens)
        if not ours then
          local most, rest = advance(q, at, 0, burst[q])
          if later(whole, part, most, rest) then whole, part = most, rest end
          if later(s[o], s[o + 1], whole, part) then whole, part = s[o], s[o + 1] end
        end
        s[o], s[o + 1] = whole, part
        if not pending or later(whole, part, s[o + 2], s[o + 3]) then s[o + 2], s[o + 3] = whole, part end
      end
    end
  end

  -- Appends what is held, if anything is: tokens, earliest end (µs).
  local function held(s, numbers)
    if s.holds then numbers[#numbers + 1], numbers[#numbers + 2] = s.holds.held, s.holds.next end
    return numbers
  end

  -- The part of a state that is returned: blocked until, then four numbers per quota, then what is held.
  local function told(s)
    local numbers = {s[1]}
    for q = 1, quotas do
      for i = 0, 3 do numbers[4 * q - 2 + i] = s[7 * q - 5 + i] end
    end
    return held(s, numbers)
  end

  -- The number of tokens available from `at` on for a request that may wait for `wait` µs, apart from those that are
  -- held; negative if tokens are already reserved ahead of time. For calendar quotas, the request acts at `acts`, if it is
  -- later.
  local function free(s, at, wait, acts)
    local least = math.huge
    for q = 1, quotas do
      local o, tokens = 7 * q - 5, burst[q]
      if num[q] == 0 and den[q] > 1 then
        tokens = calendar().free(s, o, acts or at, wait)
      elseif num[q] == 0 then
        tokens = tokens - s[o]
      else
        local early = s[o] < at
        tokens = tokens + tokens_in(q, now + wait - (early and at or s[o]), early and 0 or s[o + 1])
      end
      least = min(least, tokens)
    end
    return s.holds and least - s.holds.held or least
  end

  return {load = load, rested = rested, save = save, told = told, held = held, free = free, charge = charge,
    advance = advance, minus = minus, later = later, span = span}
end
