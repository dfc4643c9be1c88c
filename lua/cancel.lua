-- cancel: gives back tokens of charges.
-- Keys       see buckets
-- Arguments  quotas (see level); then per run and limit:
--   cost    tokens
--   at, age µs; the rule for the tokens that are given back:
--           at, -since: those on which no later charge depends (as CancelAt of Go's x/time/rate), until the time `at`;
--                    none if the clock is before `since`: it was set back after the charge
--           -1, -1:  all if nothing was charged after them, otherwise none. The request never acts
--           at, age: all minus those that were refilled since the charge, which was made at the time `at` by the server's
--                    clock, and was `age` old by the client's; none while a reservation is pending
--   then per quota: the TAT after the charge (whole, part), and the latest TAT of the reservations that were pending
--   before the charge (last, rest), or the window of a calendar quota; -1, -1 as the TAT of a quota that never refills or is
--   of a calendar: give nothing back
-- Returns    now (µs); then per run and limit: 1 if anything was given back, else 0; -1 if the key does not hold a bucket
-- Writes     changed buckets, SET with PXAT (see bucket; no PXAT if a quota never refills); DEL when idle

-- Returns the traces of a charge: {tat, part, last, rest} of each level.
local function traces_of(args, at, count)
  local traces = {}
  for q = 1, count do
    traces[q] = {number(args[at]), number(args[at + 1]), number(args[at + 2]), number(args[at + 3])}
    at = at + 4
  end
  return traces
end

-- Raises the latest TAT of the pending reservations to at least (whole, part).
local function at_least(l, whole, part)
  if level.later(whole, part, l.last, l.rest) then l.last, l.rest = whole, part end
end

-- Returns the unused part of a charge: (µs, den-ths).
local function unused(l, now, held, cost, at, age, whole, part)
  local span = level.span(l) - level.advance(l, 0, 0, held)
  -- Zero if the bucket was reset since, or if a reservation is pending.
  if level.later(whole, part, l.tat, l.part) or max(l.tat, l.last) > now + span then return 0, 0 end
  local back, over = level.advance(l, 0, 0, cost)
  return back - max(age, now - at), over
end

-- Returns the part of a charge on which no later charge depends. Removes its reservation.
local function undone(l, cost, whole, part, last, rest)
  local charge, crumb = level.advance(l, 0, 0, cost)
  local built, built_part = level.minus(l, l.last, l.rest, whole, part)
  if built == 0 and built_part == 0 then
    l.last, l.rest = level.minus(l, whole, part, charge, crumb)
    at_least(l, last, rest)
    if level.later(whole, part, l.tat, l.part) then at_least(l, l.tat, l.part) end
  end
  return level.minus(l, charge, crumb, built, built_part)
end

-- Gives back to one level. Returns whether anything was given.
local function give_back(l, now, held, cost, at, age, trace)
  local whole, part, last, rest = unpack(trace)
  local back, over = 0, 0
  if l.num == 0 then
    local left = max(0, l.tat - cost)
    local can = left < l.tat and whole >= 0 and (not l.of or calendar.can_give_back(l, whole, last))
    if can then l.tat = left end
    return can
  elseif age >= 0 then
    back, over = unused(l, now, held, cost, at, age, whole, part)
  elseif at >= 0 or whole > now and l.tat == whole and l.part == part and l.last == whole and l.rest == part then
    back, over = undone(l, cost, whole, part, last, rest)
  end
  if not level.later(back, over, 0, 0) then return false end
  l.tat, l.part = level.minus(l, l.tat, l.part, back, over)
  if age >= 0 then l.last, l.rest = l.tat, l.part end
  return true
end

-- Returns whether nothing can be given back: the charge is unknown, because the bucket was reset since, or has no level
-- for these quotas; or it is too late.
local function is_over(s, at, age, traces)
  if s.is_new or age < 0 and at >= 0 and (s.now > at or s.now < -age) then return true end
  for q = 1, age < 0 and s.ours or 0 do
    local l, trace = s.levels[q], traces[q]
    if l.num ~= 0 and level.later(trace[1], trace[2], l.last, l.rest) then return true end
  end
  return false
end

function operations.cancel(keys, args)
  local now, limits, first = clock(), level.limits(args, 2)
  local from, width = {}, 0
  for p, limit in ipairs(limits) do
    from[p] = first + width
    width = width + 3 + 4 * #level.quotas(limit)
  end
  return buckets.each(keys, limits, now, function(s, i)
    local run = floor((i - 1) / #limits)
    local b = from[i - run * #limits] + run * width
    local cost, at, age = number(args[b]), number(args[b + 1]), number(args[b + 2])
    local traces, given, held = traces_of(args, b + 3, s.ours), 0, s.holds and s.holds.held or 0
    for q = 1, is_over(s, at, age, traces) and 0 or s.ours do
      if give_back(s.levels[q], now, held, cost, at, age, traces[q]) then given = 1 end
    end
    if given == 1 then bucket.change(s, false) end
    return given
  end)
end
