-- calendar: the levels of calendar quotas, whose tokens all come back at the start of a day, week, month or year. They
-- are stored as those of quotas whose tokens never come back, with other numbers (see lib/bucket):
--   whole   used tokens, of the current window and, if more than the burst, of later ones; part is -1
--   last    the number of the window, which is positive; rest is 0
--   den     the code of the calendar: (start + 100 if tokens can be reserved ahead)·2880 + 1440 + offset from UTC
--           (minutes). start: 1 a day; 11 to 17 a week from that weekday on (11: Monday); 21 to 51 a month from that day
--           on, or its last day; 61 to 72 a year from that month on
-- If the clock was set back, a later window stays, but not one after the next.
-- Dates as in Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": day 0 and month 0 begin 0000-03-01.
-- Joined before lib/bucket. `calendar()` creates the functions on demand. `s` is a state in table form, `o` the position of
-- a level.
local windows
local function calendar()
  if windows then return windows end
  local floor, max, min = math.floor, math.max, math.min
  local minute, epoch = 60000000, 719468 -- µs; days from day 0 to 1970-01-01
  local day = 1440 * minute
  local longest = 2 ^ 50 -- µs
  local kept = day -- µs: how long a state is kept after its last window, in case the clock is set back
  local known = {}

  -- Decodes a code, or returns nil.
  local function decode(code)
    local start, offset = floor(code / 2880), code % 2880 - 1440
    local of = {ahead = start >= 100, offset = offset * minute}
    if start >= 200 or offset == -1440 then return nil end
    start = start % 100
    if start == 1 then of.days, of.first = 1, 0
    elseif start >= 11 and start <= 17 then of.days, of.first = 7, start - 6 -- day 5 is a Monday
    elseif start >= 21 and start <= 51 then of.months, of.first, of.start = 1, 0, start - 20
    elseif start >= 61 and start <= 72 then of.months, of.first, of.start = 12, (start - 51) % 12, 1
    else return nil end
    return of
  end

  local function rules(code)
    local of = known[code]
    if not of then
      of = decode(code)
      known[code] = of
    end
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
    local today = floor((at + of.offset) / day) + epoch
    if of.days then return floor((today - of.first) / of.days) end
    local month = month_of(today)
    if today < first_day(month, of.start) then month = month - 1 end
    return floor((month - of.first) / of.months)
  end

  -- When a window starts (µs).
  local function start(of, number)
    local today
    if of.days then
      today = number * of.days + of.first
    else
      today = first_day(number * of.months + of.first, of.start)
    end
    return (today - epoch) * day - of.offset
  end

  -- The used tokens for a request that acts at `at` or later.
  local function used_by(of, s, o, at)
    return max(s[o], max(0, window(of, at) - s[o + 2]) * s[o + 6])
  end

  -- The tokens that come back within 35 years from `from` on.
  local function most_used(of, number, from, burst)
    return (1 + window(of, from + longest) - number) * burst
  end

  windows = {rules = rules, window = window, start = start}

  -- Moves a stored level on to the current window. Returns whether its window was limited, because the clock was set back;
  -- nil if there is no such level.
  function windows.read(s, o)
    local of = rules(s[o + 5])
    if not of or s[o + 2] < 1 or s[o + 3] ~= 0 or s[o] > 16384 * s[o + 6] then return nil end
    local current = window(of, now)
    if s[o + 2] > current + 1 then
      s[o + 2] = current + 1
      return true
    elseif s[o + 2] < current then
      s[o], s[o + 2] = max(0, s[o] - (current - s[o + 2]) * s[o + 6]), current
    end
    return false
  end

  -- The number of tokens available from `at` on for a request that may wait for `wait` µs.
  function windows.free(s, o, at, wait)
    local of = rules(s[o + 5])
    local last = window(of, of.ahead and now + wait or now)
    return (1 + max(0, last - s[o + 2])) * s[o + 6] - used_by(of, s, o, at)
  end

  -- The used tokens after the charge of a request that acts at `at` or later.
  local function charged(of, s, o, at, tokens)
    local used, burst = used_by(of, s, o, at), s[o + 6]
    -- The tokens of a request are all of one window, if they can be.
    local left = (burst - used % burst) % burst
    if left < tokens and tokens <= burst then used = used + left end
    return used + tokens
  end

  -- Charges a request that acts at `at` or later; if it is a level of another quota (not `ours`), at most until all
  -- tokens are used.
  function windows.charge(s, o, at, tokens, ours)
    local of = rules(s[o + 5])
    if ours then
      s[o] = charged(of, s, o, at, tokens)
    else
      local most = (1 + max(0, window(of, at) - s[o + 2])) * s[o + 6]
      s[o] = max(s[o], min(used_by(of, s, o, at) + tokens, most))
    end
  end

  -- When a request acts that is charged from `at` on to the first `count` levels. See src/token_bucket/windows.rs.
  function windows.acts(s, count, at, tokens, on)
    local acts, held = at, s.holds and s.holds.held or 0
    for q = 1, count do
      local whole, part, num = s[7 * q - 5], s[7 * q - 4], s[7 * q - 1]
      if num > 0 then
        if whole < at then whole, part = at, 0 end
        whole, part = on.advance(q, whole, part, tokens)
        whole, part = on.minus(q, whole, part, on.advance(q, 0, 0, max(0, s[7 * q + 1] - held)))
        acts = max(acts, whole + (part > 0 and 1 or 0))
      end
    end
    for _ = 1, count do
      for o = 2, 7 * count, 7 do
        local of, burst = s[o + 4] == 0 and s[o + 5] > 1 and rules(s[o + 5]), s[o + 6]
        local used = of and charged(of, s, o, acts, tokens) or 0
        if used > burst then acts = max(acts, start(of, s[o + 2] + floor((used - 1) / burst))) end
      end
    end
    return acts
  end

  -- Charges at most as many tokens as come back within 35 years.
  function windows.overuse(s, o, at, tokens)
    local of = rules(s[o + 5])
    s[o] = max(s[o], min(used_by(of, s, o, at) + tokens, most_used(of, s[o + 2], now, s[o + 6])))
  end

  -- Whether the tokens of a charge can be given back, which led to `used` tokens in the window `number`: it was in the
  -- current window, and all charges act now; or nothing was charged after it.
  function windows.can_give_back(s, o, used, number)
    local passed = s[o + 2] - number
    return (passed == 0 and s[o] <= s[o + 6]) or (passed >= 0 and s[o] == used - passed * s[o + 6])
  end

  -- The time from which a level is idle, at the latest, if the holds `h` end (nil: there are none).
  function windows.idle_from(s, o, h)
    local of, used, burst = rules(s[o + 5]), s[o], s[o + 6]
    -- What is held is charged as at most 1024 bursts.
    if h and h.captures > 0 then used = used_by(of, s, o, h.last) + min(h.captures, 1024 * burst) end
    return start(of, s[o + 2] + floor((used + burst - 1) / burst)) + kept
  end

  -- The average time between two tokens (µs) of a quota whose `num` is 0.
  function windows.interval(code, burst)
    if code == 1 then return math.huge end
    local of = rules(code)
    return (of.days and of.days * day or of.months * 2629746000000) / burst
  end

  -- The window of a level that is new: the current one; or, after the clock was set back, that of the level at `from`,
  -- from which `used` tokens are taken over. The second value is the used tokens, at most those of 35 years.
  function windows.taken_over(code, burst, used, s, from)
    local of, at = rules(code), now
    if from and s[from + 4] == 0 and s[from + 5] > 1 then
      at = max(now, start(rules(s[from + 5]), s[from + 2]))
    end
    local number = window(of, at)
    return min(number, window(of, now) + 1), min(used, most_used(of, number, at, burst))
  end

  return windows
end
