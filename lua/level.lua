-- level: one level of a bucket: the missing tokens under one quota (GCRA, in exact integers). The fields of a level:
--   tat, part         TAT: µs and den-ths of a µs; or if tokens do not refill one by one: used tokens, -1
--   last, rest        the latest TAT of pending reservations (not acted yet); above the TAT only after a cancellation
--   num, den, burst   the quota: `burst` tokens; one is refilled every num/den µs. num = 0: they never refill if den is 1,
--                     otherwise at the start of a window, see calendar
--   of                ? the calendar

-- Reads the limits of a call. Arguments, from `at` on: the number of limits; then per limit: its quota in the stored
-- form, `num den burst`, if it has only one quota; and packed numbers, per quota: num, den, burst. Packed numbers are a
-- zero byte and big-endian doubles, which can be read in a third of the time of a text. A server that does not know a
-- command returns its arguments in the error, each up to a zero byte, and clients read errors as text. Returns the
-- limits, and the position after them. A limit with one quota has its numbers; and if that quota refills, `text`, and
-- `full`, the burst in den-ths, unless its states are never bare.
function level.limits(args, at)
  local limits = {level.limit(args, at + 1)}
  for p = 2, args[at] do limits[p] = level.limit(args, at + 2 * p - 1) end
  return limits, at + 1 + 2 * #limits
end

-- The same for one limit.
function level.limit(args, at)
  local text, numbers = args[at], args[at + 1]
  if #numbers ~= 25 then return {numbers = numbers, quotas = false} end
  local num, den, burst = decode('>xddd', numbers)
  return {
    text = num > 0 and text, num = num, den = den, burst = burst, full = level.full(num, burst), numbers = numbers,
    quotas = false,
  }
end

-- Returns the burst in den-ths; false if states of the quota are never bare.
function level.full(num, burst)
  local full = burst * num
  return full > 0 and full < 2 * lift and full
end

-- Returns the quotas of a limit.
function level.quotas(limit)
  local quotas, numbers = limit.quotas, limit.numbers
  if not quotas then
    quotas = {}
    for q = 1, (#numbers - 1) / 24 do
      local num, den, burst = decode('>ddd', numbers, 24 * q - 22)
      quotas[q] = {num = num, den = den, burst = burst, of = num == 0 and den > 1 and calendar.decode(den) or nil}
    end
    limit.quotas = quotas
  end
  return quotas
end

-- Creates a level of a limit's only quota, with no cancelled reservation. Returns nil if it is invalid.
function level.own(limit, tat, part)
  if tat >= 2 * lift or part < 0 or part >= limit.den then return nil end
  return {
    tat = tat, part = part, last = tat, rest = part, num = limit.num, den = limit.den, burst = limit.burst, of = nil,
  }
end

-- Creates a level from seven numbers, as texts. Returns nil if it is invalid, and whether it was limited because the
-- clock was set back.
function level.read(now, tat, part, last, rest, num, den, burst)
  tat, part, last, rest = tat + 0, part + 0, last + 0, rest + 0
  num, den, burst = num + 0, den + 0, burst + 0
  local l = {tat = tat, part = part, last = last, rest = rest, num = num, den = den, burst = burst, of = nil}
  if max(tat, last, num, den, burst) >= 2 * lift or den < 1 or burst < 1 or part >= den or rest >= den
    or part < -1 or (part < 0) ~= (num == 0) or burst * (num / den) > 2 * horizon then return nil end
  if num > 0 or den == 1 then return l, false end
  l.of = calendar.decode(den)
  local is_limited = calendar.read(l, now)
  if is_limited == nil then return nil end
  return l, is_limited
end

-- Moves a TAT by `tokens` tokens. Quotients are exact, because the remainder is subtracted before the division.
function level.advance(l, whole, part, tokens)
  local den, crumb = l.den, l.num % l.den
  local parts = part + tokens * crumb
  local rest = parts % den
  return whole + tokens * ((l.num - crumb) / den) + (parts - rest) / den, rest
end

-- (whole, part) minus (other, rest), in den-ths.
function level.minus(l, whole, part, other, rest)
  if part < rest then return whole - other - 1, part + l.den - rest end
  return whole - other, part - rest
end

function level.later(whole, part, other, rest)
  return whole > other or (whole == other and part > rest)
end

-- The time in which an empty level fills, in whole µs.
function level.span(l)
  return (level.advance(l, 0, 0, l.burst))
end

-- Returns the number of whole tokens that are refilled in `span` µs minus `part` den-ths of a µs. A negative span
-- counts backwards.
local function tokens_in(l, span, part)
  local num, den = l.num, l.den
  local rest = span % num
  local parts = rest * den - part
  return (span - rest) / num * den + (parts - parts % num) / num
end

-- Returns the TAT of an empty level, if the debt of this level is higher.
function level.owes(l, now)
  if l.num == 0 or l.tat < now and l.last < now then return nil end
  local most, rest = level.advance(l, now, 0, l.burst)
  if level.later(l.tat, l.part, most, rest) or level.later(l.last, l.rest, most, rest) then return most, rest end
end

-- Returns the number of tokens available from `at` on for a request that may wait for `wait` µs; negative if tokens are
-- already reserved ahead of time. For calendar quotas, the request acts at `acts`.
function level.free(l, now, at, wait, acts)
  if l.of then return calendar.free(l, now, acts, wait) end
  if l.num == 0 then return l.burst - l.tat end
  if l.tat < at then return l.burst + tokens_in(l, now + wait - at, 0) end
  return l.burst + tokens_in(l, now + wait - l.tat, l.part)
end

-- Whether a reservation has not acted yet.
function level.is_pending(l, now)
  return l.last - level.span(l) > now
end

-- Sets the TAT, and the latest one of the pending reservations.
local function set(l, whole, part, is_pending)
  l.tat, l.part = whole, part
  if not is_pending or level.later(whole, part, l.last, l.rest) then l.last, l.rest = whole, part end
end

-- Charges tokens from `at` on; those of a calendar quota from `acts` on.
function level.charge(l, now, at, tokens, acts)
  if l.of then return calendar.charge(l, acts, tokens) end
  if l.num == 0 then
    l.tat = l.tat + tokens
    return
  end
  local is_pending, whole, part = level.is_pending(l, now), l.tat, l.part
  if whole < at then whole, part = at, 0 end
  whole, part = level.advance(l, whole, part, tokens)
  set(l, whole, part, is_pending)
end

-- Charges a request to which the quota does not apply: at most until the level is empty. `acts`: as for `charge`.
function level.charge_up_to_burst(l, at, tokens, acts)
  tokens = min(tokens, l.burst)
  if l.of then return calendar.charge_up_to_burst(l, acts, tokens) end
  if l.num == 0 then
    l.tat = max(l.tat, min(l.tat + tokens, l.burst))
    return
  end
  local whole, part = l.tat, l.part
  if whole < at then whole, part = at, 0 end
  whole, part = level.advance(l, whole, part, tokens)
  local most, rest = level.advance(l, at, 0, l.burst)
  if level.later(whole, part, most, rest) then whole, part = most, rest end
  if level.later(l.tat, l.part, whole, part) then whole, part = l.tat, l.part end
  set(l, whole, part, true)
end

-- Charges without a check, at most as many tokens as are refilled within 35 years. `keeps`: the latest TAT of the
-- pending reservations is not lowered.
function level.overdraw(l, now, at, tokens, acts, keeps)
  if l.of then return calendar.overdraw(l, now, acts, tokens) end
  if l.num == 0 then
    l.tat = max(l.tat, min(l.tat + tokens, horizon))
    return
  end
  local is_pending, whole, part, latest = keeps or level.is_pending(l, now), l.tat, l.part, now + horizon
  if whole < at then whole, part = at, 0 end
  if tokens * (l.num / l.den) > horizon then
    whole, part = latest, 0
  else
    whole, part = level.advance(l, whole, part, tokens)
    if level.later(whole, part, latest, 0) then whole, part = latest, 0 end
  end
  if level.later(l.tat, l.part, whole, part) then whole, part = l.tat, l.part end
  set(l, whole, part, is_pending)
end

-- Adds tokens, at most until the level is full.
function level.give(l, now, tokens)
  if l.num == 0 then
    l.tat = max(0, l.tat - tokens)
  elseif l.tat > now then
    local whole, part = now, 0
    if tokens * (l.num / l.den) <= horizon then
      whole, part = level.minus(l, l.tat, l.part, level.advance(l, 0, 0, tokens))
      if whole < now then whole, part = now, 0 end
    end
    local is_pending = level.is_pending(l, now)
    l.tat, l.part = whole, part
    if not is_pending then l.last, l.rest = whole, part end
  end
end

-- Returns an upper bound for the time from which a level is full and without pending reservations, if the holds `h` end
-- (nil: there are none); nil if never; 0 if it is unused.
function level.idle_from(l, h)
  if l.num == 0 then
    if l.tat == 0 and not (h and h.captures > 0) then return 0 end
    return l.of and calendar.idle_from(l, h)
  end
  local full, last = l.part > 0 and l.tat + 1 or l.tat, l.rest > 0 and l.last + 1 or l.last
  if last > full then full = last end
  if not h then return full end
  if h.last > full then full = h.last end
  if h.captures * (l.num / l.den) > horizon then return full + horizon end
  local whole, part = level.advance(l, full, 0, h.captures)
  return part > 0 and whole + 1 or whole
end
