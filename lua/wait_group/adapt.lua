-- wait_group/adapt: adds what a process saw to the window of a key, and moves the limit when the window is over.
-- KEYS      for each run: string, eleven whole numbers, which `names` lists:
--           limit (thousandths); base, the latency without a queue (ns, 0: unknown); age, windows since it was measured;
--           probe, 1 or 2 while it is measured; since when the window lasts (µs); in the window: ok, overloads, the sum
--           of the latencies (µs), busy (permits in flight · ms); before the window: in_flight, the permits in flight
--           (thousandths, smoothed); the mean latency of the last window (µs)
-- ARGV      for each run: 1: follow the latency, 0: do not; the lowest limit; the highest; the one if none is stored;
--           the length of a window (µs); successes; overloads; the sum of the latencies of the successes (µs); the
--           most permits in flight in the process; since when (µs ago)
-- returns   now (µs); for each run: the limit, permits in flight, the mean latency of the last window (µs)
-- writes    SET with PXAT: 1 hour, if the process saw something
-- cost      for each run one GET, at most one SET
local names = {'limit', 'base', 'age', 'probe', 'since', 'ok', 'overloads', 'latency', 'busy', 'in_flight', 'mean'}
local kept, longest, most, busiest = 3600000000, 3600000000, 10 ^ 15, 4 * 10 ^ 12 -- µs, µs, a sum, permits · ms
local few, probe_after = 10, 100 -- samples, windows
local floor, max, min = math.floor, math.max, math.min

local function stored(key, known)
  local raw, s, n = redis.pcall('GET', key), {}, 0
  -- A key of another type, and text in another form, were forged: they are replaced.
  raw = type(raw) == 'string' and string.match(raw, '^[%d ]+$') or ''
  for digits in string.gmatch(raw, '%d+') do
    n = n + 1
    if names[n] then s[names[n]] = min(tonumber(digits), 2 ^ 52) end
  end
  if n == #names then return s end
  for _, name in ipairs(names) do s[name] = 0 end
  s.limit, s.since = known * 1000, now
  return s
end

-- Moves the limit by a window that is over. `Adapted::adjust` in src/wait_group/adaptive/step.rs says why.
local function adjust(s, follows)
  local used, short = s.in_flight * 2 >= s.limit, max(1, s.mean * 1000)
  if s.overloads * 100 >= s.ok + s.overloads then
    s.limit, s.probe = floor(s.limit * 9 / 10), 0
  elseif follows == 0 then
    s.limit, s.probe = used and s.limit + 1000 or s.limit, 0 -- a probe is of other rules
  elseif s.probe == 1 then
    s.probe = 2
  elseif s.probe == 2 then
    s.base, s.age, s.probe = floor((s.base + short) / 2), 0, 0
  elseif s.base == 0 then
    s.base = short
  elseif not used then
    s.base = floor((s.base * 9 + short) / 10)
  else
    local gradient = max(500, min(1000, floor(s.base * 1100 / short)))
    local target = floor(s.limit * gradient / 1000) + floor(math.sqrt(s.limit * 1000))
    s.limit, s.age = floor((s.limit * 8 + target * 2) / 10), s.age + 1
    if s.age >= probe_after then s.probe = 1 end
  end
end

local reply = {now}
for run, key in ipairs(KEYS) do
  local a = {}
  for i = 1, 10 do a[i] = tonumber(ARGV[run * 10 - 10 + i]) end
  local follows, low, high, known, window, ok, overloads, latency, peak, span = unpack(a)
  local s = stored(key, known)
  s.limit, s.base, s.age = max(low * 1000, min(high * 1000, s.limit)), min(s.base, longest * 1000), min(s.age, 1000)
  s.probe, s.since, s.busy = s.probe % 3, min(s.since, now), min(s.busy, busiest)
  s.in_flight, s.mean = min(s.in_flight, 10 ^ 9), min(s.mean, longest)
  if ok + overloads + peak > 0 then
    local lasts = now - s.since
    s.ok, s.overloads = min(s.ok + ok, most), min(s.overloads + overloads, most)
    s.latency = min(s.latency + latency, most)
    s.busy = min(s.busy + floor(peak * min(span, max(lasts, window)) / 1000), busiest)
    local mean = s.ok > 0 and min(floor(s.latency / s.ok), longest) or 0
    local is_over = lasts >= max(window, min(mean * 2, window * 10))
    if is_over and s.ok + s.overloads >= min(few, max(1, floor(s.limit / 1000))) then
      local in_flight = floor(s.busy * 1000 / max(1, floor(lasts / 1000)))
      s.in_flight, s.mean = min(floor((s.in_flight * 3 + in_flight) / 4), 10 ^ 9), mean
      adjust(s, follows)
      s.limit = max(low * 1000, min(high * 1000, s.limit))
      s.since, s.ok, s.overloads, s.latency, s.busy = now, 0, 0, 0, 0
    end
    local values = {}
    for i, name in ipairs(names) do values[i] = string.format('%.0f', s[name]) end
    redis.call('SET', key, table.concat(values, ' '), 'PXAT', string.format('%d', (now + kept) / 1000))
  end
  local limit = s.probe > 0 and max(low, floor(s.limit / 2000)) or floor(s.limit / 1000)
  reply[3 * run - 1], reply[3 * run], reply[3 * run + 1] = limit, floor((s.in_flight + 500) / 1000), s.mean
end
return reply
