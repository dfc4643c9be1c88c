-- token_bucket/reserve_all: charges each request to several buckets, in full to all of them or not at all.
-- KEYS     strings, the buckets: those of run 1 in the order of the limits, then those of run 2, ...; a bucket may
--          belong to many runs
-- ARGV     sets of quotas (see lib/several); number of costs: 1, or as many as there are limits; then per run, or once for
--          all runs: costs (tokens) of all limits or of each limit, count (number of equal requests)
-- returns  now (µs); then per run: the number of admitted requests (the first of count; -1 if a key does not hold a
--          bucket), and the state of each bucket before the run (see lib/bucket or lib/bare)
-- writes   charged buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills)
-- cost     one MGET, one EXISTS if MGET does not find all keys, one SET per charged bucket
local on -- see lib/bucket, on_tables
local n = #sets

-- Per limit: parts of a µs; tokens and bursts in parts; and if its states may be bare, what `bare_form` returns.
local parts, per_token, per_burst, ending, pattern = {}, {}, {}, {}, {}
for p = 1, n do
  under(p)
  parts[p], per_token[p], per_burst[p] = den[1], num[1], burst[1] * num[1]
  if per_burst[p] < limit then ending[p], pattern[p] = bare_form() end
end

-- The first position of each key in KEYS, the list of these positions, and the stored values.
local at, met, raw = {}, {}, {}
for i = 1, #KEYS do
  local key = KEYS[i]
  if not at[key] then
    at[key], met[#met + 1] = i, i
    raw[#met] = key
  end
end
raw = redis.call('MGET', unpack(raw))

-- MGET does not find a key of another type.
local missing = {}
for m = 1, #met do
  if not raw[m] then missing[#missing + 1] = KEYS[met[m]] end
end
local are_missing = #missing == 0 or redis.call('EXISTS', unpack(missing)) == 0

-- Per position: bare states, other states in table form, whether they are not as they were stored (see `load` in
-- lib/bucket), whether the state changed.
local bare, others, is_new, changed = {}, {}, {}, {}
for m = 1, #met do
  local i, stored = met[m], raw[m]
  local p = (i - 1) % n + 1
  if pattern[p] and (stored or are_missing) then
    bare[i], is_new[i] = read_bare(stored, pattern[p], parts[p], per_burst[p])
  end
  if not bare[i] then
    stored = stored or not are_missing and call('GET', KEYS[i])
    on = on or on_tables()
    under(p)
    if type(stored) ~= 'table' then
      local swept
      others[i], is_new[i], swept = on.load(stored)
      is_new[i] = is_new[i] or swept
    elseif not string.find(stored.err, 'WRONGTYPE', 1, true) then
      return stored
    end
  end
end

local costs = tonumber(ARGV[first])
first = first + 1
local reply, stride = {now}, #ARGV == first + costs and 0 or costs + 1
local cost, count, a
local width = n + 1
for run = 1, #KEYS / n do
  if stride > 0 or run == 1 then
    a = first + stride * (run - 1)
    cost, count = tonumber(ARGV[a]), tonumber(ARGV[a + costs])
  end
  local admitted, base, told = count, n * (run - 1), width * (run - 1) + 2
  for p = 1, n do
    local i = at[KEYS[base + p]]
    local ahead, s = bare[i], others[i]
    if costs > 1 then cost = tonumber(ARGV[a + p - 1]) end
    if ahead then
      reply[told + p] = ahead
      if admitted > 0 then
        local free, price = per_burst[p] - ahead, cost * per_token[p]
        if admitted * price > free then admitted = free >= price and floor(free / price) or 0 end
      end
    elseif s then
      under(p)
      -- Sets the levels of this limit again; see lib/bucket.
      s = on.rested(s)
      others[i], reply[told + p] = s, on.told(s)
      if admitted > 0 then
        admitted = s[1] > now and 0 or max(0, min(admitted, floor(on.free(s, now, 0) / cost)))
      end
    else
      admitted, reply[told + p] = -1, 0
    end
  end
  reply[told] = admitted
  for p = 1, admitted >= 0 and n or 0 do
    local i = at[KEYS[base + p]]
    if costs > 1 then cost = tonumber(ARGV[a + p - 1]) end
    if admitted == 0 then
      changed[i] = changed[i] or is_new[i]
    elseif bare[i] then
      bare[i], changed[i] = bare[i] + admitted * cost * per_token[p], true
    else
      under(p)
      others[i], changed[i] = on.rested(others[i]), true
      on.charge(others[i], now, admitted * cost)
    end
  end
end

for m = 1, #met do
  local i, saved = met[m], nil
  if changed[i] then
    local key, p = KEYS[i], (i - 1) % n + 1
    if bare[i] then
      saved = save_bare(key, bare[i], parts[p], ending[p], per_burst[p])
    else
      under(p)
      saved = on.save(key, (on.rested(others[i])))
    end
  end
  if type(saved) == 'table' and saved.err then return saved end
end
return reply
