-- token_bucket/reserve: charges each request to its bucket, in full or not at all.
-- KEYS[i]   string, the bucket of run i; the runs of one bucket stand side by side
-- ARGV      quotas (see lib/bucket); then per run, or once for all runs: cost (tokens), wait (µs, longest
--           delay accepted), count (requests, all alike, in a row)
-- returns   now (µs); then per run: admitted (the first so many of count; -1 where the key holds something
--           else than a bucket), and the state before it
-- writes    charged buckets, SET with PXAT (see lib/bucket; without where a quota never refills), or INCRBY
-- cost      one MGET, one SET or INCRBY per charged bucket

local load, save, advance, tokens_in, span, later

-- How many of `count` requests fit a state in table form; these are charged.
local function take(s, cost, wait, count)
  local at = max(now, s[1])
  if at > now + wait then return 0 end
  for q = 1, quotas do
    local o, free = 4 * q - 2, burst[q]
    if num[q] == 0 then
      free = free - s[o]
    else
      local early = s[o] < at
      free = free + tokens_in(q, now + wait - (early and at or s[o]), early and 0 or s[o + 1])
    end
    if count * cost > free then count = free > 0 and floor(free / cost) or 0 end
  end
  if count == 0 then return 0 end
  for q = 1, quotas do
    local o = 4 * q - 2
    if num[q] == 0 then
      s[o] = s[o] + count * cost
    else
      local pending = s[o + 2] - span(q) > now
      if s[o] < at then s[o], s[o + 1] = at, 0 end
      s[o], s[o + 1] = advance(q, s[o], s[o + 1], count * cost)
      if not pending or later(s[o], s[o + 1], s[o + 2], s[o + 3]) then
        s[o + 2], s[o + 3] = s[o], s[o + 1]
      end
    end
  end
  return count
end

-- Writes a bare state, `old` before; `old` is nil where MGET found nothing. What repeats is formatted once.
local tat, digits, ends, expiry, more, delta
local function save_bare(key, old, new)
  local from = new - new % second
  if old and old >= from then
    if new - old ~= more then more, delta = new - old, format('%d', new - old) end
    return call('INCRBY', key, delta)
  end
  if from ~= ends then ends, expiry = from, pxat(new) end
  if new ~= tat then tat, digits = new, format('%d', new) end
  if old then return call('SET', key, digits, 'PXAT', expiry) end
  return call('SET', key, digits, 'PXAT', expiry, 'GET')
end

local raw, reply, n = redis.call('MGET', unpack(KEYS)), {now}, 1
local stride = #ARGV == first + 2 and 0 or 3
local cost, wait, count, price, top
local last, old, new, s, charged, from
for i = 1, #KEYS do
  if stride > 0 or i == 1 then
    local a = first + stride * (i - 1)
    cost, wait, count = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
    if bare then price, top = cost * num[1], now + wait + burst[1] * num[1] end
  end
  local key = KEYS[i]
  if key ~= last then
    last, old, charged, from = key, raw[i], false, n + 1
    new = old and tonumber(old) or 0
    if not bare or (old and not (new > 0 and new < limit)) then
      if not load then load, save, advance, tokens_in, span, later = tables() end
      new, s = nil, load(old)
    elseif old then
      old = new
    end
  end
  local before, admitted = new or 0, -1
  if new then
    -- As take, with what is known of a bare state; in line, for nearly all calls come here.
    if new < now then new = now end
    local free = top - new
    admitted = count
    if count * price > free then admitted = free >= price and floor(free / price) or 0 end
    new = new + admitted * price
  elseif s then
    before = {unpack(s, 1, 1 + 4 * quotas)}
    admitted = take(s, cost, wait, count)
  end
  reply[n + 1], reply[n + 2] = admitted, before
  n = n + 2
  charged = charged or admitted * cost > 0
  if charged and key ~= KEYS[i + 1] then
    local saved
    if new then saved = save_bare(key, old, new) else saved = save(key, s, not old) end
    if type(saved) == 'table' and saved.err then
      if not (string.find(saved.err, 'WRONGTYPE') or string.find(saved.err, 'not an integer')) then return saved end
      for run = from, n, 2 do reply[run] = -1 end
    end
  end
end
return reply
