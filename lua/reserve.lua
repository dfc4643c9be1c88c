-- reserve: charges each request to its buckets, in full to all of them or not at all.
-- Keys       see buckets
-- Arguments  quotas (see level); then per run, or once for all runs, packed: count (number of equal requests), wait (µs, the
-- longest
--            accepted delay; 0 if there are several limits), and the cost (tokens) of all limits or of each one
-- Returns    now (µs); then per run: the number of admitted requests (the first of count; -1 if a key does not hold a
--            bucket), and
--            the state of each bucket before the run (see `told` in bucket, or bare). One run of a bare state is answered
--            with the
--            numbers in one text, or with now alone if all requests are admitted to a bucket that was full
-- Writes     charged buckets, SET with PXAT (see bucket; no PXAT if a quota never refills)

-- Returns how many of `count` requests fit a state in table form, from when on they are charged, and when the last one acts.
local function admitted_to(s, cost, wait, count)
  local at = max(s.now, s.blocked)
  if at > s.now + wait then return 0 end
  -- Also if it waits, it gets none of what is held.
  for q = 1, s.holds and s.ours or 0 do
    if cost > s.levels[q].burst - s.holds.held then return 0 end
  end
  count = max(0, min(count, floor(bucket.free(s, at, wait, at) / cost)))
  if count == 0 then return 0 end
  local acts = wait > 0 and bucket.acts(s, at, count * cost) or at
  if acts > at and (acts > s.now + wait or bucket.free(s, at, wait, acts) < cost) then return 0 end
  return count, at, acts
end

-- Looks at a cell for `count` requests. Returns the state that is told, how many of the requests fit, from when on they are
-- charged, and when the last one acts. Without the second value, the key does not hold a bucket.
local function look(cell, limit, now, cost, wait, count)
  local ahead = cell.ahead
  if not ahead and limit.full and not cell.state and cell.raw ~= nil then
    ahead, cell.is_new, cell.ends = bare.read(cell.raw, limit, now)
    cell.ahead, cell.limit = ahead, limit
  end
  local fits = ahead and cell.limit == limit and bare.admitted(ahead, limit, cost, wait, count)
  if fits then return ahead, fits, now, now end
  local is_new = cell.is_new
  if ahead then cell.raw, cell.ahead = bare.value(ahead, cell.limit, now), false end
  if not cell.state or cell.limit ~= limit then buckets.state(cell, limit, now) end
  cell.is_new = cell.is_new or is_new
  if cell.state then return bucket.told(cell.state), admitted_to(cell.state, cost, wait, count) end
  return 0
end

-- Charges the requests that were admitted to all buckets.
local function charge(cell, limit, now, tokens, at, acts)
  buckets.renew(cell)
  if tokens == 0 then return end
  buckets.change(cell, true)
  if cell.ahead then
    cell.ahead = cell.ahead + tokens * limit.num
  else
    if cell.limit ~= limit then buckets.state(cell, limit, now) end
    bucket.charge(cell.state, at, tokens, acts)
  end
end

-- Serves a call of one run, if the state is bare. Most calls are such, and take about as long as to make the tables of others.
local function lone(key, args, now)
  local limit, count, wait, cost = level.limit(args, 3), struct.unpack('>xddd', args[5])
  local raw = not limit.full or attempt('GET', key)
  if raw and type(raw) ~= 'string' then return nil end
  local ahead, is_moved, ends = bare.read(raw, limit, now)
  local admitted = ahead and bare.admitted(ahead, limit, cost, wait, count)
  if not admitted then return nil end
  local tokens = admitted * cost
  if tokens > 0 or is_moved then
    local value, ends_then = bare.value(ahead + tokens * limit.num, limit, now)
    bare.write(key, value, ends_then, ends)
  end
  if admitted == count and ahead == 0 then return now end
  return format('%d %d %d', now, admitted, ahead)
end

-- Serves any call.
local function several(keys, args, now)
  local limits, at = level.limits(args, 2)
  local cells, n, stride, reply = buckets.open(keys, limits), #limits, #args > at and 1 or 0, {now, 0, 0}
  local terms, count, wait, cost
  for run = 1, #keys / n do
    if stride > 0 or run == 1 then
      terms = args[at + stride * (run - 1)]
      count, wait, cost = struct.unpack('>xddd', terms)
    end
    local base, told, admitted, from, acts = n * (run - 1), (n + 1) * (run - 1) + 2, count, now, now
    for p = 1, n do
      if #terms > 25 then cost = struct.unpack('>d', terms, 10 + 8 * p) end
      local fits
      reply[told + p], fits, from, acts = look(cells[keys[base + p]], limits[p], now, cost, wait, admitted)
      admitted = admitted >= 0 and fits or -1
    end
    reply[told] = admitted
    for p = 1, admitted >= 0 and n or 0 do
      if #terms > 25 then cost = struct.unpack('>d', terms, 10 + 8 * p) end
      charge(cells[keys[base + p]], limits[p], now, admitted * cost, from, acts)
    end
  end
  bare.save(cells, now)
  buckets.save(cells)
  return reply
end

function operations.reserve(keys, args)
  local now = clock()
  return not keys[2] and lone(keys[1], args, now) or several(keys, args, now)
end
