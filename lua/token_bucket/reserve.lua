-- token_bucket/reserve: charges each request to its bucket, in full or not at all.
-- KEYS[i]   string, the bucket of run i; the runs of one bucket are adjacent
-- ARGV      quotas (see lib/bucket); then per run, or once for all runs, packed (see lib/bucket): cost (tokens), wait (µs,
--           the longest accepted delay), count (number of equal requests)
-- returns   now (µs); then per run: the number of admitted requests (the first of count; -1 if the key does not hold a
--           bucket), and the state before the run (see lib/bucket or lib/bare). One run of a bare state is answered
--           with the numbers in one text, or with now alone if all requests are admitted to a bucket that was full
-- writes    charged buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills)
-- cost      one GET (one bucket) or MGET, one SET per charged bucket; both reads for one bucket that is not bare

local on -- see lib/bucket, on_tables
local ending, pattern = bare_form()
local parts, per_token, per_burst = den[1], num[1], burst[1] * num[1] -- den-ths of a µs

-- Charges as many of `count` requests as fit a state in table form. Returns their number.
local function take(s, cost, wait, count)
  local at = max(now, s[1])
  if at > now + wait then return 0 end
  if s.holds then
    -- Also if it waits, it gets none of what is held.
    for q = 1, quotas do
      if cost > burst[q] - s.holds.held then return 0 end
    end
  end
  count = max(0, min(count, floor(on.free(s, at, wait) / cost)))
  if count == 0 then return 0 end
  local acts = at
  for q = 1, wait > 0 and quotas or 0 do
    if num[q] == 0 and den[q] > 1 then acts = calendar().acts(s, quotas, at, count * cost, on) end
  end
  if acts > at and (acts > now + wait or on.free(s, at, wait, acts) < cost) then return 0 end
  on.charge(s, at, count * cost, acts)
  return count
end

local raw, reply, n = redis.call('MGET', unpack(KEYS)), {now}, 1
local stride = #ARGV == first and 0 or 1
local cost, wait, count, price, top
local last, old, ahead, s, charged, from
for i = 1, #KEYS do
  if stride > 0 or i == 1 then
    cost, wait, count = struct.unpack('>xddd', ARGV[first + stride * (i - 1)])
    price, top = cost * per_token, wait * parts + per_burst
  end
  local key = KEYS[i]
  if key ~= last then
    last, old, charged, from = key, raw[i], false, n + 1
    ahead, s = nil, nil
    if pattern then ahead, charged = read_bare(old, pattern, parts, per_burst) end
    if not ahead then
      on = on or on_tables()
      local swept
      s, charged, swept = on.load(old)
      charged = charged or swept
    end
  end
  if ahead and top >= limit and ahead + count * price >= limit then
    -- The state may not be bare after the charge.
    on = on or on_tables()
    s = on.load((bare_value(ahead, parts, ending, per_burst)))
    ahead = nil
  end
  local admitted, before = -1, 0
  if ahead then
    -- As `take`, for a bare state. It is inlined, because nearly all calls take this path.
    local free = top - ahead
    admitted, before = count, ahead
    if count * price > free then admitted = free >= price and floor(free / price) or 0 end
    ahead = ahead + admitted * price
  elseif s then
    before = on.told(s)
    admitted = take(s, cost, wait, count)
  end
  reply[n + 1], reply[n + 2] = admitted, before
  n = n + 2
  charged = charged or admitted * cost > 0
  if charged and key ~= KEYS[i + 1] then
    local saved
    if ahead then
      saved = save_bare(key, ahead, parts, ending, per_burst, not old)
    else
      saved = on.save(key, s, not old)
    end
    if type(saved) == 'table' and saved.err then
      if not string.find(saved.err, 'WRONGTYPE', 1, true) then return saved end
      for run = from, n, 2 do reply[run] = -1 end
    end
  end
end
return reply
