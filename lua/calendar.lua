-- calendar: the levels of calendar quotas, whose tokens are all refilled at the start of a day, week, month or year.
-- They have the fields of other levels (see level), with other meanings:
--   tat     used tokens, of the current window and, if more than the burst, of later ones; part is -1
--   last    the number of the window, which is positive; rest is 0
--   num     0
--   den     the code of the calendar: (start + 100 if tokens can be reserved ahead)·2880 + 1440 + offset from UTC (minutes).
--           start: 1 a day; 11 to 17 a week from that weekday on (11: Monday); 21 to 51 a month from that day on, or its last
--           day; 61 to 72 a year from that month on
-- If the clock was set back, a later window is kept, but not one after the next window. Dates follow Howard Hinnant,
-- "chrono-Compatible Low-Level Date Algorithms": day 0 and month 0 begin 0000-03-01.
local epoch = 719468 -- days from day 0 to 1970-01-01
local of_day, minute = 86400000000, 60000000 -- µs

-- Decodes a code, or returns nil.
function calendar.decode(code)
  local start, offset = floor(code / 2880), code % 2880 - 1440
  if start >= 200 or offset == -1440 then return nil end
  local of = {ahead = start >= 100, offset = offset * minute}
  start = start % 100
  if start == 1 then of.days, of.first = 1, 0
  elseif start >= 11 and start <= 17 then of.days, of.first = 7, start - 6 -- day 5 is a Monday
  elseif start >= 21 and start <= 51 then of.months, of.first, of.start = 1, 0, start - 20
  elseif start >= 61 and start <= 72 then of.months, of.first, of.start = 12, (start - 51) % 12, 1
  else return nil end
  return of
end

local function month_of(days)
  local era = floor(days / 146097)
  local of_era = days - era * 146097
  local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
  return 12 * (400 * era + year) + floor((5 * of_year + 2) / 153)
end

local function first(month)
  local year = floor(month / 12)
  return 365 * year + floor(year / 4) - floor(year / 100) + floor(year / 400)
    + floor((153 * (month - 12 * year) + 2) / 5)
end

-- The day of a month on which a window starts.
local function first_day(month, start)
  if start == 1 then return first(month) end
  return min(first(month) + start, first(month + 1)) - 1
end

-- The number of the window at a time (µs).
local function window(of, at)
  local today = floor((at + of.offset) / of_day) + epoch
  if of.days then return floor((today - of.first) / of.days) end
  local month = month_of(today)
  if today < first_day(month, of.start) then month = month - 1 end
  return floor((month - of.first) / of.months)
end

-- When a window starts (µs).
local function start(of, nth)
  local today
  if of.days then
    today = nth * of.days + of.first
  else
    today = first_day(nth * of.months + of.first, of.start)
  end
  return (today - epoch) * of_day - of.offset
end

-- Returns the used tokens for a request that acts at `at` or later.
local function used_by(l, at)
  return max(l.tat, max(0, window(l.of, at) - l.last) * l.burst)
end

-- Returns the number of tokens that are refilled within 35 years from `from` on.
local function most_used(of, nth, from, burst)
  return (1 + window(of, from + horizon) - nth) * burst
end

-- Returns the used tokens after the charge of a request that acts at `at` or later.
local function charged(l, at, tokens)
  local used, burst = used_by(l, at), l.burst
  -- The tokens of a request are from one window, if possible.
  local left = (burst - used % burst) % burst
  if left < tokens and tokens <= burst then used = used + left end
  return used + tokens
end

-- Moves a stored level on to the current window. Returns whether its window was limited, because the clock was set
-- back; nil if the level is invalid.
function calendar.read(l, now)
  if not l.of or l.last < 1 or l.rest ~= 0 or l.tat > 16384 * l.burst then return nil end
  local current = window(l.of, now)
  if l.last > current + 1 then
    l.last = current + 1
    return true
  elseif l.last < current then
    l.tat, l.last = max(0, l.tat - (current - l.last) * l.burst), current
  end
  return false
end

-- The number of tokens available from `at` on for a request that may wait for `wait` µs.
function calendar.free(l, now, at, wait)
  local last = window(l.of, l.of.ahead and now + wait or now)
  return (1 + max(0, last - l.last)) * l.burst - used_by(l, at)
end

-- Charges a request that acts at `at` or later.
function calendar.charge(l, at, tokens)
  l.tat = charged(l, at, tokens)
end

-- Charges a request to which the quota does not apply: at most until all tokens are used.
function calendar.charge_up_to_burst(l, at, tokens)
  local most = (1 + max(0, window(l.of, at) - l.last)) * l.burst
  l.tat = max(l.tat, min(used_by(l, at) + tokens, most))
end

-- Charges at most as many tokens as are refilled within 35 years.
function calendar.overdraw(l, now, at, tokens)
  l.tat = max(l.tat, min(used_by(l, at) + tokens, most_used(l.of, l.last, now, l.burst)))
end

-- Returns when a request acts under this level that is charged from `at` on. See src/bucket/level.rs.
function calendar.acts(l, at, tokens)
  local used = charged(l, at, tokens)
  return used > l.burst and max(at, start(l.of, l.last + floor((used - 1) / l.burst))) or at
end

-- Returns whether the tokens of a charge can be given back. The charge resulted in `used` tokens in the window `nth`.
-- They can if that window is the current one and all charges act now, or if nothing was charged after it.
function calendar.can_give_back(l, used, nth)
  local passed = l.last - nth
  return (passed == 0 and l.tat <= l.burst) or (passed >= 0 and l.tat == used - passed * l.burst)
end

-- Returns an upper bound for the time from which a level is idle, if the holds `h` end (nil: there are none). The state
-- is kept for a day after its last window, in case the clock is set back.
function calendar.idle_from(l, h)
  local used = l.tat
  -- Holds are charged as at most 1024 bursts.
  if h and h.captures > 0 then used = used_by(l, h.last) + min(h.captures, 1024 * l.burst) end
  return start(l.of, l.last + floor((used + l.burst - 1) / l.burst)) + of_day
end

-- Returns the average time between two tokens (µs).
function calendar.interval(quota)
  return (quota.of.days and quota.of.days * of_day or quota.of.months * 2629746000000) / quota.burst
end

-- Returns the window of a new level: the current one; or, after the clock was set back, that of the level `from` (nil:
-- none), from which `used` tokens are taken over. The second value is the used tokens, at most those of 35 years.
function calendar.taken_over(quota, now, used, from)
  local of = quota.of
  local at = from and from.of and max(now, start(from.of, from.last)) or now
  local nth = window(of, at)
  return min(nth, window(of, now) + 1), min(used, most_used(of, nth, at, quota.burst))
end
