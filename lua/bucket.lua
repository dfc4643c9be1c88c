-- bucket: the state of a token bucket. It is a table: `levels`, first the levels of the quotas of the call (`ours`: how
-- many), then those of the quotas of other calls; `blocked`: until when it is blocked (µs, 0: not blocked); `holds`:
-- see holds, or nil; `now`; `is_new`: whether a quota is new to it, or the clock was set back since the write;
-- `is_swept`: whether holds have ended; `change`: nil: it need not be written; otherwise whether tokens were taken from
-- it.
-- The stored value is a text of numbers, separated by spaces: blocked, then per level tat, part, last, rest, num, den,
-- burst; for one level and no other information only `tat part num den burst`; see also bare. The holds follow the
-- numbers, see holds. A key expires at the end of the second in which its bucket is full and unblocked. A state ends
-- with the time of its write (µs) if its debt exceeded its bursts then: it was blocked, reserved ahead, or charged
-- without a check. In states with holds, that time is among the numbers of the holds. If the clock is behind that time,
-- it was set back: all times of the state move back by the same span. The debt of other states never exceeds their
-- bursts, which bounds them after the clock was set back.

-- The expiry (PXAT, ms) at the end of a second (µs).
function bucket.pxat(ends)
  return format('%d', (ends + second) / 1000)
end

-- Returns what a key stores: a text; false: nothing; nil: another type.
function bucket.stored(key)
  local raw = attempt('GET', key)
  if not raw or not raw.err then return raw end
  if state.failure(raw) then error(raw.err, 0) end
  return nil
end

-- Returns the levels of a full bucket of a limit.
local function full(limit)
  return limit.text and {level.own(limit, 0, 0)} or {}
end

-- Returns the time from which a state is idle, so that deleting it changes nothing; nil if never.
local function idle_from(s)
  local idle, h = s.blocked, s.holds
  if h and h.last > idle then idle = h.last end
  for q = 1, #s.levels do
    local from = level.idle_from(s.levels[q], h)
    if not from then return nil end
    if from > idle then idle = from end
  end
  return idle
end

-- Adds a level to a state, which has at most 16. Returns whether it is valid, and whether it was limited because the
-- clock was set back.
local function add(s, ...)
  local l, is_limited = level.read(s.now, ...)
  s.levels[#s.levels + 1] = l
  return l ~= nil and #s.levels <= 16, is_limited
end

-- Reads the numbers of a state. Returns whether they are valid; when they were written, if stored; and whether the
-- clock was set back since.
local function read_numbers(s, raw)
  local tat, part, num, den, burst, seen = match(raw, '^(%d+) (%-?%d+) (%d+) (%d+) (%d+)%f[%D] ?(%d*)$')
  if tat then
    local is_level = add(s, tat, part, num == '0' and 0 or tat, num == '0' and 0 or part, num, den, burst)
    return is_level and (seen == '' or seen + 0 < 2 * lift), number(seen), false
  end
  local blocked, at = match(raw, '^(%d+)()')
  local is_level, is_limited = blocked and blocked + 0 < 2 * lift, false
  s.blocked = is_level and blocked + 0
  while is_level and at <= #raw do
    local last, rest, behind, limits
    tat, part, last, rest, num, den, burst, behind = match(raw, '^ (%d+) (-?%d+) (%d+) (%d+) (%d+) (%d+) (%d+)()', at)
    if not tat then break end
    is_level, limits = add(s, tat, part, last, rest, num, den, burst)
    at, is_limited = behind, is_limited or limits
  end
  if not is_level or not s.levels[1] then return false end
  seen = match(raw, '^ (%d+)$', at)
  return at > #raw or seen and seen + 0 < 2 * lift, number(seen or ''), is_limited
end

-- Reads a stored state. Returns it, or nil if it is invalid; when it was written, if stored; and whether the clock was
-- set back since.
local function read(s, raw, limit)
  local bar, written = find(raw, '|', 1, true), nil
  if bar then
    s.holds, written = holds.read(raw, bar + 1)
    if not s.holds then return nil end
  end
  local tat, part, quota, at = match(raw, '^(%d+) (%-?%d+) ([%d ]+)()')
  if at == (bar or #raw + 1) and quota == limit.text then
    s.levels = {level.own(limit, tat + 0, part + 0)}
    return s.levels[1] and s, written, false
  end
  s.levels = {}
  local is_state, seen, is_limited = read_numbers(s, bar and sub(raw, 1, bar - 1) or raw)
  if not is_state or bar and seen then return nil end
  return s, written or seen, is_limited
end

-- Moves the times of a state that was written at `seen`, before the clock was set back. Returns whether its holds are
-- valid.
local function move(s, seen)
  local now = s.now
  local function moved(at)
    return at > now and max(now, at - seen + now) or at
  end
  s.blocked = moved(s.blocked)
  for _, l in ipairs(s.levels) do
    if l.num > 0 then l.tat, l.last = moved(l.tat), moved(l.last) end
  end
  return not s.holds or holds.shift(s.holds, now, seen)
end

-- Lowers the debt of a state to its bursts: it was not higher at the write, so the clock was set back since. Returns
-- whether it was.
local function lower(s)
  local was_set_back = false
  for q = 1, #s.levels do
    local l = s.levels[q]
    local most, rest = level.owes(l, s.now)
    if most then
      if level.later(l.tat, l.part, most, rest) then l.tat, l.part = most, rest end
      if level.later(l.last, l.rest, most, rest) then l.last, l.rest = most, rest end
      was_set_back = true
    end
  end
  return was_set_back
end

-- Fits a state to the quotas of a limit; an idle state becomes an empty one. Returns whether a quota is new to it.
function bucket.fit(s, limit)
  local idle = idle_from(s)
  if idle and idle <= s.now then s.blocked, s.levels, s.holds = 0, full(limit), nil end
  return change.fit(s, limit)
end

-- Returns the state that is stored as `raw`, see `stored`; nil if that is not a bucket.
function bucket.load(raw, limit, now)
  if raw == nil then return nil end
  local s = {
    now = now, blocked = 0, levels = nil, ours = 0, holds = nil, is_new = false, is_swept = false, change = nil,
  }
  local seen, is_limited, was_set_back = now, false, false
  if raw then
    s, seen, is_limited = read(s, raw, limit)
    if not s then return nil end
  else
    s.levels = full(limit)
  end
  if not seen then
    was_set_back = lower(s)
  elseif seen > now then
    if not move(s, seen) then return nil end
    was_set_back = true
  end
  if s.holds and s.holds.next <= now then
    if not holds.sweep(s) then return nil end
    s.is_swept = not was_set_back
  end
  s.is_new = bucket.fit(s, limit) or was_set_back or is_limited
  return s
end

-- Records that a state has changed. `takes`: tokens were taken from it.
function bucket.change(s, takes)
  s.change = s.change or takes
end

-- Records a change if a state differs from the stored state.
function bucket.renew(s)
  if s.is_new or s.is_swept then bucket.change(s, false) end
end

-- Returns the text of a state.
local function text(s)
  local levels, l = s.levels, s.levels[1]
  local value
  local owes = s.blocked > 0
  if not (owes or levels[2] or l.of or level.later(l.last, l.rest, l.tat, l.part)) then
    value = format('%d %d %d %d %d', l.tat, l.part, l.num, l.den, l.burst)
  else
    local texts = {format('%d', s.blocked)}
    for i, each in ipairs(levels) do
      local tat, part, last, rest = each.tat, each.part, each.last, each.rest
      texts[i + 1] = format('%d %d %d %d %d %d %d', tat, part, last, rest, each.num, each.den, each.burst)
    end
    value = table.concat(texts, ' ')
  end
  if s.holds then return value .. '|' .. holds.text(s.holds, s.now) end
  for i = 1, #levels do owes = owes or level.owes(levels[i], s.now) ~= nil end
  return owes and format('%s %d', value, s.now) or value
end

local function set(key, value, expiry)
  if expiry then return attempt('SET', key, value, 'PXAT', expiry) end
  return attempt('SET', key, value)
end

-- Writes a state that has changed. If no tokens were taken, this works even if the server is out of memory: the server
-- refuses SET as the first write of a script, but allows it after a write that frees memory.
function bucket.save(key, s)
  if s.change == nil then return end
  local idle = idle_from(s)
  if s.blocked <= s.now then s.blocked = 0 end
  if idle and idle <= s.now then
    call('DEL', key)
    return
  end
  local value, expiry = text(s), idle and bucket.pxat(idle - idle % second)
  local saved = set(key, value, expiry)
  if not s.change and saved.err and state.is_full(saved) then
    call('DEL', key)
    saved = set(key, value, expiry)
  end
  if saved.err then error(saved.err, 0) end
end

-- Appends the holds, if there are any: the held tokens, the earliest end (µs).
local function with_held(s, numbers)
  if s.holds then numbers[#numbers + 1], numbers[#numbers + 2] = s.holds.held, s.holds.next end
  return numbers
end

-- Returns the part of a state for replies: blocked until, then four numbers per quota of the call, then the holds.
function bucket.told(s)
  local l = s.levels[1]
  local numbers = {s.blocked, l.tat, l.part, l.last, l.rest}
  for q = 2, s.ours do
    local n = 4 * q - 2
    l = s.levels[q]
    numbers[n], numbers[n + 1], numbers[n + 2], numbers[n + 3] = l.tat, l.part, l.last, l.rest
  end
  return with_held(s, numbers)
end

-- Returns the whole state: seven numbers per level.
function bucket.all(s)
  local numbers = {s.blocked}
  for _, l in ipairs(s.levels) do
    for _, value in ipairs({l.tat, l.part, l.last, l.rest, l.num, l.den, l.burst}) do numbers[#numbers + 1] = value end
  end
  return with_held(s, numbers)
end

-- Returns the number of tokens available from `at` on for a request that may wait for `wait` µs, without held tokens;
-- negative if tokens are already reserved ahead of time. For calendar quotas, the request acts at `acts`.
function bucket.free(s, at, wait, acts)
  local least = level.free(s.levels[1], s.now, at, wait, acts)
  for q = 2, s.ours do least = min(least, level.free(s.levels[q], s.now, at, wait, acts)) end
  return s.holds and least - s.holds.held or least
end

-- Charges tokens, from `at` on; those of calendar quotas from `acts` on.
function bucket.charge(s, at, tokens, acts)
  local levels, ours = s.levels, s.ours
  for q = 1, ours do level.charge(levels[q], s.now, at, tokens, acts) end
  for q = ours + 1, #levels do level.charge_up_to_burst(levels[q], at, tokens, at) end
end

-- Returns when a request acts that is charged from `at` on. See src/bucket.rs.
function bucket.acts(s, at, tokens)
  local acts, held, has_windows = at, s.holds and s.holds.held or 0, false
  for q = 1, s.ours do has_windows = has_windows or s.levels[q].of end
  if not has_windows then return at end
  for q = 1, s.ours do
    local l = s.levels[q]
    if l.num > 0 then
      local whole, part = l.tat, l.part
      if whole < at then whole, part = at, 0 end
      whole, part = level.advance(l, whole, part, tokens)
      whole, part = level.minus(l, whole, part, level.advance(l, 0, 0, max(0, l.burst - held)))
      acts = max(acts, whole + (part > 0 and 1 or 0))
    end
  end
  for _ = 1, s.ours do
    for q = 1, s.ours do
      if s.levels[q].of then acts = calendar.acts(s.levels[q], acts, tokens) end
    end
  end
  return acts
end
