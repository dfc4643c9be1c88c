-- reserve: charges each request to its buckets, to all of them or to none.
-- Keys       see buckets
-- Arguments  quotas (see level); then per run, or once for all runs, packed: count (number of equal requests), wait
--            (µs, the longest accepted delay; 0 if there are several limits), and the cost (tokens) of all limits or of
--            each one
-- Returns    now (µs); then per run: the number of admitted requests (the first of count; -1 if a key does not hold a
--            bucket), and the state of each bucket before the run (see `told` in bucket, or bare). For one run of a
--            bare state, the reply is the numbers in one text, or now alone if all requests are admitted to a bucket
--            that was full
-- Writes     charged buckets, SET with PXAT (see bucket; no PXAT if a quota never refills)

-- Returns how many of `count` requests fit a state, from when on they are charged, and when the last one acts.
local function admitted_to(s, cost, wait, count)
  local at = max(s.now, s.blocked)
  if at > s.now + wait then return 0 end
  -- Held tokens are not available, even to a request that waits.
  for q = 1, s.holds and s.ours or 0 do
    if cost > s.levels[q].burst - s.holds.held then return 0 end
  end
  count = max(0, min(count, floor(bucket.free(s, at, wait, at) / cost)))
  if count == 0 then return 0 end
  local acts = wait > 0 and bucket.acts(s, at, count * cost) or at
  if acts > at and (acts > s.now + wait or bucket.free(s, at, wait, acts) < cost) then return 0 end
  return count, at, acts
end

-- A bucket of the call is a table: `key`; `limit`; `ahead`: its state, if it is bare; otherwise `s`, once it is read
-- from `raw` (false: the key does not hold a bucket); `ends`: the second in which the key expires; and as long as the
-- state is bare, `has_changed`, and `was_moved`: whether it differs from the stored state.
local function open(key, limit, now)
  local raw = bucket.stored(key)
  local ahead, was_moved, ends = bare.read(raw, now, limit.text, limit.den, limit.full)
  return {
    key = key, limit = limit, raw = raw, ahead = ahead, s = nil,
    ends = ends, was_moved = was_moved, has_changed = false,
  }
end

-- Checks a bucket for `count` requests. Returns the state for the reply, how many of the requests fit, from when on
-- they are charged, and when the last one acts; -1 as the second value: the key does not hold a bucket.
local function look(b, now, cost, wait, count)
  local limit = b.limit
  if b.ahead then
    local admitted = bare.admitted(b.ahead, limit.num, limit.den, limit.full, cost, wait, count)
    if admitted then return b.ahead, admitted, now, now end
    b.raw, b.ahead = bare.value(b.ahead, now, limit.text, limit.den, limit.full), nil
  end
  if b.s == nil then
    b.s = bucket.load(b.raw, limit, now) or false
    if b.s and b.was_moved then b.s.is_new = true end
    if b.s and b.has_changed then bucket.change(b.s, true) end
  end
  if not b.s then return 0, -1 end
  return bucket.told(b.s), admitted_to(b.s, cost, wait, count)
end

-- Charges the admitted requests to a bucket.
local function charge(b, tokens, at, acts)
  if b.ahead then
    b.ahead, b.has_changed = b.ahead + tokens * b.limit.num, b.has_changed or b.was_moved or tokens > 0
    return
  end
  bucket.renew(b.s)
  if tokens == 0 then return end
  bucket.change(b.s, true)
  bucket.charge(b.s, at, tokens, acts)
end

local function save(b, now)
  local limit = b.limit
  if b.s then
    bucket.save(b.key, b.s)
  elseif b.ahead and b.has_changed then
    local value, ends = bare.value(b.ahead, now, limit.text, limit.den, limit.full)
    bare.write(b.key, value, ends, b.ends)
  end
end

-- Reads keys. Returns a list of their contents, see `stored` in bucket.
local function read(keys)
  local raws, found = call('MGET', unpack(keys)), 0
  for i = 1, #keys do
    if raws[i] then found = found + 1 end
  end
  -- MGET returns nil for a key of another type.
  if found < #keys and call('EXISTS', unpack(keys)) > found then
    for i = 1, #keys do raws[i] = bucket.stored(keys[i]) end
  end
  return raws
end

-- Serves a call of one limit, key by key: the runs of a key are adjacent. As long as the state of a key is bare, it is
-- `ahead`, without a table `b`. This is so in nearly all calls, and it takes about as long as creating the tables of
-- the others.
local function with_one(keys, args, now)
  local text, numbers, num, den, burst = args[3], args[4], 0, 1, 0
  if #numbers == 25 then num, den, burst = decode('>xddd', numbers) end
  local full, count, wait, cost = level.full(num, burst), decode('>xddd', args[5])
  local raws, reply, limit = keys[2] and read(keys), keys[2] and {now}, nil
  local b, raw, ahead, has_changed, ends, told, admitted, at, acts, saved, value, ends_then, expiry
  for run = 1, #keys do
    local key = keys[run]
    if run > 1 and args[6] then count, wait, cost = decode('>xddd', args[4 + run]) end
    if key ~= keys[run - 1] then
      if raws then raw = raws[run] else raw = bucket.stored(key) end
      b, ahead, has_changed, ends = nil, bare.read(raw, now, text, den, full)
    end
    told, admitted = ahead, ahead and bare.admitted(ahead, num, den, full, cost, wait, count)
    if admitted then
      ahead, has_changed = ahead + admitted * cost * num, has_changed or admitted > 0
    else
      limit = limit or level.limit(args, 3)
      b = b or {key = key, limit = limit, raw = raw, ahead = ahead, s = nil, has_changed = has_changed}
      ahead, has_changed = nil, false
      told, admitted, at, acts = look(b, now, cost, wait, count)
      if admitted >= 0 then charge(b, admitted * cost, at, acts) end
    end
    if reply then reply[2 * run], reply[2 * run + 1] = admitted, told end
    if key ~= keys[run + 1] and b then save(b, now) end
    if key ~= keys[run + 1] and has_changed then
      -- Many keys of a call get the same state.
      if ahead ~= saved then saved, expiry, value, ends_then = ahead, nil, bare.value(ahead, now, text, den, full) end
      expiry = bare.write(key, value, ends_then, ends, expiry)
    end
  end
  if reply then return reply end
  if b then return {now, admitted, told} end
  if admitted == count and told == 0 then return now end
  return format('%d %d %d', now, admitted, told)
end

-- Serves a call of several limits: a request is charged to all its buckets, if it fits them all.
local function with_several(keys, args, now)
  local limits, at = level.limits(args, 2)
  local opened, n, stride, reply = {}, #limits, #args > at and 1 or 0, {now}
  local terms, count, cost
  for run = 1, #keys / n do
    if stride > 0 or run == 1 then
      terms = args[at + stride * (run - 1)]
      count, cost = decode('>xd', terms), decode('>d', terms, 18)
    end
    local base, told, admitted = n * (run - 1), (n + 1) * (run - 1) + 2, count
    reply[told] = 0
    for p = 1, n do
      local key = keys[base + p]
      if #terms > 25 then cost = decode('>d', terms, 10 + 8 * p) end
      local b = opened[key]
      if not b then
        b = open(key, limits[p], now)
        opened[key], opened[#opened + 1] = b, b
      end
      local fits
      reply[told + p], fits = look(b, now, cost, 0, admitted)
      admitted = admitted < 0 and -1 or fits
    end
    reply[told] = admitted
    for p = 1, admitted >= 0 and n or 0 do
      if #terms > 25 then cost = decode('>d', terms, 10 + 8 * p) end
      charge(opened[keys[base + p]], admitted * cost, now, now)
    end
  end
  for _, b in ipairs(opened) do save(b, now) end
  return reply
end

function operations.reserve(keys, args)
  return (args[2] == '1' and with_one or with_several)(keys, args, clock())
end
