-- change: the state of a bucket whose calls have different quotas; see src/bucket/change.rs. It has a level for each
-- quota of earlier calls, at most 16.

-- Converts a TAT of a level to a quota, so that the same number of tokens is missing.
local function convert(l, now, whole, part, quota)
  local tokens, rest = whole, 0
  if l.num > 0 then
    if whole < now then whole, part = now, 0 end
    local laps = floor((whole - now) / l.num)
    local parts = (whole - now - laps * l.num) * l.den + part
    tokens = floor(parts / l.num)
    rest = (parts - tokens * l.num) / l.num
    tokens = laps * l.den + tokens
  end
  tokens = tokens - max(0, l.burst - quota.burst)
  if tokens < 0 then tokens, rest = 0, 0 end
  tokens = min(tokens, 1024 * quota.burst)
  if quota.num == 0 then return tokens + (rest > 0 and 1 or 0), -1 end
  if tokens == 0 and rest == 0 then return 0, 0 end
  if tokens * (quota.num / quota.den) > horizon then return now + horizon, 0 end
  whole, part = level.advance(quota, now, 0, tokens)
  part = part + ceil(rest * quota.num)
  local carry = floor(part / quota.den)
  return whole + carry, part - carry * quota.den
end

-- The average time between two tokens (µs).
local function interval(quota)
  if quota.of then return calendar.interval(quota) end
  return quota.num > 0 and quota.num / quota.den or math.huge
end

-- Returns the level whose interval is nearest to that of a quota: the shortest one that is not shorter, otherwise the
-- longest; of equal ones, the level with the most missing tokens. Nil if there is none.
local function nearest(levels, quota)
  local wanted, found, best = interval(quota), nil, nil
  for _, l in ipairs(levels) do
    local this = interval(l)
    local is_nearer = not found
    if found and this == best then
      is_nearer = level.later(l.tat, l.part, found.tat, found.part)
    elseif found and best >= wanted then
      is_nearer = this >= wanted and this < best
    elseif found then
      is_nearer = this > best
    end
    if is_nearer then found, best = l, this end
  end
  return found
end

-- Returns a level for a quota that is new to a state.
local function take_over(levels, now, quota)
  local l, from = {
    tat = 0, part = quota.num == 0 and -1 or 0, last = 0, rest = 0,
    num = quota.num, den = quota.den, burst = quota.burst, of = quota.of,
  }, levels[1] and nearest(levels, quota)
  if from then l.tat, l.part = convert(from, now, from.tat, from.part, quota) end
  if quota.of then
    l.last, l.tat = calendar.taken_over(quota, now, l.tat, from)
  elseif quota.num > 0 and from then
    l.last, l.rest = l.tat, l.part
    if from.num > 0 and level.later(from.last, from.rest, from.tat, from.part) then
      l.last, l.rest = convert(from, now, from.last, from.rest, quota)
    end
  end
  return l
end

local function is_of(l, quota)
  return l and l.num == quota.num and l.den == quota.den and l.burst == quota.burst
end

-- Returns a table with the same entries.
local function copy(entries)
  local copied = {}
  for name, value in pairs(entries) do copied[name] = value end
  return copied
end

-- Puts the levels of a limit's quotas first. Returns whether a quota is new to the state.
function change.fit(s, limit)
  local old = s.levels
  if limit.num and is_of(old[1], limit) then
    s.ours = 1
    return false
  end
  local quotas, same = level.quotas(limit), 0
  local count = #quotas
  s.ours = count
  while same < count and is_of(old[same + 1], quotas[same + 1]) do same = same + 1 end
  if same == count then return false end
  local levels, taken, is_new = {}, {}, false
  for q, quota in ipairs(quotas) do
    for _, l in ipairs(old) do
      if is_of(l, quota) then
        levels[q] = levels[q] or not taken[l] and l or copy(l)
        taken[l] = true
      end
    end
    if not levels[q] then
      is_new = is_new or #old > 0
      levels[q] = take_over(old, s.now, quota)
    end
  end
  for _, l in ipairs(old) do
    if not taken[l] and #levels < 16 then levels[#levels + 1] = l end
  end
  s.levels = levels
  return is_new
end
