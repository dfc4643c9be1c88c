-- adapt: limits of permits that adapt to the measurements of the processes.
-- Keys       for each run: string, sixteen whole numbers, which `names` lists: limit (thousandths); base, the latency
--           without a queue (ns, 0: unknown); age, windows since it was measured; probe, 1 to 3 while it is measured;
--           since when the window lasts (µs); in the window: ok, overloads, the sum of the latencies (µs), busy
--           (permits in flight · ms); before the window: in_flight, the permits in flight (thousandths, smoothed); the
--           mean latency of the last window (µs); usual, the share of overloads that does not depend on the load, and
--           tried, the share before a probe (millionths); sure, windows for which usual counts as measured; cuts, how
--           often the limit was lowered recently; sampled, when a sample was reported (µs)
local names = {'limit', 'base', 'age', 'probe', 'since', 'ok', 'overloads', 'latency', 'busy', 'in_flight', 'mean',
  'usual', 'tried', 'sure', 'cuts', 'sampled'}
local kept, quiet, longest = 3600000000, 60000000, 3600000000 -- µs
local most, busiest, most_samples = 10 ^ 15, 4 * 10 ^ 12, 10 ^ 9 -- a sum, permits · ms, a number
local few, measured, longer, probe_after = 10, 100, 10, 100 -- samples, samples, times, windows
local full, drain, half = 1, 2, 3 -- the steps of a probe
local all, free, many, nearly_all = 1000000, 10000, 100000, 750000 -- shares in millionths
local cut, too_many, low_limit = 6, 14, 8000

-- Returns the state of a key. If none is stored, its limit is `known`.
local function stored(key, known, now)
  local raw, s, n = attempt('GET', key), {}, 0
  -- A key of another type, and text in another form, were written by another program: they are replaced.
  raw = type(raw) == 'string' and match(raw, '^[%d ]+$') or ''
  for digits in string.gmatch(raw, '%d+') do
    n = n + 1
    if names[n] then s[names[n]] = min(number(digits), 2 ^ 52) end
  end
  if n == #names then return s end
  for _, name in ipairs(names) do s[name] = 0 end
  s.limit, s.since, s.sampled = known * 1000, now, now
  return s
end

local function bound(s, low, high, now)
  s.lowest = max(low_limit, low * 1000)
  s.limit, s.base, s.age = max(low * 1000, min(high * 1000, s.limit)), min(s.base, longest * 1000), min(s.age, 1000)
  s.probe, s.since, s.sampled = s.probe % (half + 1), min(s.since, now), min(s.sampled, now)
  s.busy, s.in_flight, s.mean = min(s.busy, busiest), min(s.in_flight, 10 ^ 9), min(s.mean, longest)
  s.usual, s.tried = min(s.usual, all / 2), min(s.tried, all)
  s.sure, s.cuts = min(s.sure, probe_after), min(s.cuts, 1000)
end

-- Returns to the start after a pause without samples.
local function rest(s, start, window, ok, latency, now)
  local mean = max(s.mean, min(floor(latency / max(1, ok)), longest))
  if now - s.sampled <= max(quiet, window * 10, mean * 2) then return end
  for _, name in ipairs({'age', 'probe', 'ok', 'overloads', 'latency', 'busy', 'in_flight', 'tried', 'sure', 'cuts'}) do
    s[name] = 0
  end
  s.limit, s.since = start * 1000, now
end

local function noise(share, samples, factor)
  return floor(math.sqrt(floor(factor * share * (all - share) / samples)))
end

-- Updates the state from a measurement at half of the load. `Adapted::learn` in src/adaptive/step.rs gives the reasons.
local function learn(s, share, samples, follows)
  if follows == 1 then
    local short = max(1, s.mean * 1000)
    s.base = s.base == 0 and short or floor((s.base + short) / 2)
  end
  s.age, s.probe, s.sure, s.cuts = 0, 0, probe_after, 0
  local margin = max(floor(min(s.tried, all - s.tried) / 2), all / 10)
  if share + min(noise(s.tried, samples, 6), margin) >= s.tried then
    s.usual = min(floor((share + s.tried) / 2), all / 2)
  elseif (all - share) * 2 >= (all - s.tried) * 3 then
    s.usual, s.sure, s.limit = 0, 0, floor(s.limit / 2)
  else
    s.usual, s.limit = min(s.usual, share), floor(s.limit * 9 / 10)
  end
end

-- Changes the limit after a window without overload.
local function grow(s, share, follows)
  local used, short = s.in_flight * 2 >= s.limit, max(1, s.mean * 1000)
  if follows == 0 then
    s.limit = used and s.limit + 1000 or s.limit
  elseif s.base == 0 then
    s.base = short
  elseif not used then
    s.base = floor((s.base * 9 + short) / 10)
  else
    local gradient = max(500, min(1000, floor(s.base * 1100 / short)))
    local target = floor(s.limit * gradient / 1000) + floor(math.sqrt(s.limit * 1000))
    s.limit = floor((s.limit * 8 + target * 2) / 10)
    s.age = s.age + (gradient == 500 and s.limit <= s.lowest and 10 or 1)
    if s.age >= probe_after then s.probe, s.tried = drain, share end
  end
end

-- Changes the limit at the end of a window. `Adapted::adjust` gives the reasons.
local function adjust(s, follows)
  local samples, usual = s.ok + s.overloads, max(s.usual, free)
  local share = floor(s.overloads * all / samples)
  local is_certain = share >= nearly_all
  local is_overload = is_certain or share > usual + noise(usual, samples, 16)
  local is_open = not is_certain and (s.sure == 0 or s.cuts >= too_many)
  s.sure, s.cuts = max(0, s.sure - 1), max(0, s.cuts - 2)
  if is_certain then s.probe = 0 end
  if s.probe == full then
    s.probe, s.tried = drain, share
  elseif s.probe == drain then
    s.probe = half
  elseif s.probe == half then
    learn(s, share, samples, follows)
  elseif is_open and (is_overload or s.usual > many) then
    s.probe = full
  elseif is_overload then
    s.limit, s.cuts = floor(s.limit * 9 / 10), s.cuts + cut
  else
    if share + noise(s.usual, samples, 1) < s.usual then s.usual = s.usual - floor((s.usual - share) / 16) end
    grow(s, share, follows)
  end
end

-- Returns whether the window is over. A limit shows its effect only after the latency, which gives the `shortest`
-- window.
local function is_over(s, lasts, shortest)
  local samples, measures = s.ok + s.overloads, s.probe == full or s.probe == half and s.tried > free
  return lasts >= shortest and samples >= min(few, max(1, floor(s.limit / 1000)))
    and (not measures or samples >= measured or lasts >= shortest * longer)
end

-- Adds the measurements of a process.
local function add(s, follows, window, ok, overloads, latency, peak, span, now)
  local lasts = now - s.since
  if ok + overloads > 0 then s.sampled = now end
  s.ok, s.overloads = min(s.ok + ok, most_samples), min(s.overloads + overloads, most_samples)
  s.latency = min(s.latency + latency, most)
  s.busy = min(s.busy + floor(peak * min(span, max(lasts, window)) / 1000), busiest)
  local mean = s.ok > 0 and min(floor(s.latency / s.ok), longest) or 0
  if not is_over(s, lasts, max(window, min(mean * 2, window * 10))) then return end
  if s.probe < drain then
    local in_flight = floor(s.busy * 1000 / max(1, floor(lasts / 1000)))
    s.in_flight = min(floor((s.in_flight * 3 + in_flight) / 4), 10 ^ 9)
  end
  s.mean = mean
  adjust(s, follows)
  s.since, s.ok, s.overloads, s.latency, s.busy = now, 0, 0, 0, 0
end

-- Runs one key: adds the measurements of a process, and changes the limit at the end of a window. Returns the state.
local function adapt(key, args, at, now)
  local a = {}
  for i = 1, 11 do a[i] = number(args[at + i]) end
  local follows, low, high, known, start, window, ok, overloads, latency, peak, span = unpack(a)
  local s = stored(key, known, now)
  bound(s, low, high, now)
  rest(s, max(low, min(high, start)), window, ok, latency, now)
  if ok + overloads + peak > 0 then
    add(s, follows, window, ok, overloads, latency, peak, span, now)
    s.limit = max(low * 1000, min(high * 1000, s.limit))
    local values = {}
    for i, name in ipairs(names) do values[i] = format('%.0f', s[name]) end
    call('SET', key, table.concat(values, ' '), 'PXAT', format('%d', (now + kept) / 1000))
  end
  local used = s.in_flight > 0 and min(s.limit, s.in_flight) or s.limit
  return s, s.probe >= drain and max(low, floor(used / 2000)) or floor(s.limit / 1000)
end

-- Adds the measurements of a process to the window of a key, and changes the limit at the end of a window.
-- Arguments  for each run: 1: follow the latency, 0: do not; the lowest limit; the highest; the limit if none is
--            stored; the limit after a pause; the length of a window (µs); successes; overloads; the sum of the
--            latencies of the successes (µs); the maximum number of permits in flight in the process; since when (µs
--            ago)
-- Returns    now (µs); for each run: the limit, permits in flight, the mean latency of the last window (µs)
-- Writes     SET with PXAT: 1 hour, if the process has samples
function operations.adapt(keys, args)
  local now = clock()
  local reply = {now}
  for run, key in ipairs(keys) do
    local s, limit = adapt(key, args, 11 * run - 10, now)
    reply[3 * run - 1], reply[3 * run], reply[3 * run + 1] = limit, floor((s.in_flight + 500) / 1000), s.mean
  end
  return reply
end

-- Returns the stored limit of a key.
-- Returns    now (µs); 1, or -1 if the key is of another type; the numbers as text, empty: none are stored
function operations.look_at_limit(keys)
  local now, raw = clock(), attempt('GET', keys[1])
  if type(raw) == 'table' then return state.refused(now, raw, '') end
  return {now, 1, raw or ''}
end
