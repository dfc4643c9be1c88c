-- reserve: charges each request to its buckets, in full to all of them or not at all.
-- Keys       see buckets
-- Arguments  quotas (see level); then per run, or once for all runs, packed: count (number of equal requests), wait (µs, the
--            longest accepted delay; 0 if there are several limits), and the cost (tokens) of all limits or of each one
-- Returns    now (µs); then per run: the number of admitted requests (the first of count; -1 if a key does not hold a
--            bucket), and the state of each bucket before the run (see `told` in bucket, or bare). One run of a bare state is
--            answered with the numbers in one text, or with now alone if all requests are admitted to a bucket that was full
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

-- Looks at a place for `count` requests. Returns the state that is told, how many of the requests fit, from when on they are
-- charged, and when the last one acts. Without the second value, the key does not hold a bucket. The opened buckets have
-- also, per place with a bare state: `aheads`, the state, see bare; `owners`, its limit; `ends`, the second in which the key
-- expires as it is stored; `moved`, whether it is not as it was stored; and `changed`.
local function look(opened, place, limit, cost, wait, count)
  local aheads, now = opened.aheads, opened.now
  local ahead, cell = aheads[place], opened.cells[place]
  if ahead == nil and not cell and limit.full and opened.raw[place] ~= nil then
    local is_moved
    ahead, is_moved, opened.ends[place] = bare.read(opened.raw[place], now, limit.text, limit.den, limit.full)
    aheads[place], opened.owners[place] = ahead or false, limit
    if is_moved then opened.moved[place] = true end
  end
  local owner = ahead and opened.owners[place]
  local fits = owner == limit and bare.admitted(ahead, limit.num, limit.den, limit.full, cost, wait, count)
  if fits then return ahead, fits, now, now end
  if ahead then opened.raw[place], aheads[place] = bare.value(ahead, now, owner.text, owner.den, owner.full), false end
  if not cell or cell.limit ~= limit then cell = buckets.cell(opened, place, limit) end
  if not cell then return 0 end
  cell.is_new = cell.is_new or opened.moved[place]
  if opened.changed[place] then buckets.change(cell, true) end
  return bucket.told(cell.state), admitted_to(cell.state, cost, wait, count)
end

-- Charges the requests that were admitted to all buckets.
local function charge(opened, place, limit, tokens, at, acts)
  local ahead, cell = opened.aheads[place], opened.cells[place]
  if ahead then
    opened.aheads[place] = ahead + tokens * limit.num
    if tokens > 0 or opened.moved[place] then opened.changed[place] = true end
    return
  end
  buckets.renew(cell)
  if tokens == 0 then return end
  if cell.limit ~= limit then buckets.cell(opened, place, limit) end
  buckets.change(cell, true)
  bucket.charge(cell.state, at, tokens, acts)
end

-- Writes the bare states that have changed.
local function save(opened)
  local ahead, limit, value, ends
  for place = 1, #opened.names do
    if opened.changed[place] and opened.aheads[place] then
      if opened.aheads[place] ~= ahead or opened.owners[place] ~= limit then
        ahead, limit = opened.aheads[place], opened.owners[place]
        value, ends = bare.value(ahead, opened.now, limit.text, limit.den, limit.full)
      end
      bare.write(opened.names[place], value, ends, opened.ends[place])
    end
  end
end

-- Serves a call of one run, if the state is bare. Most calls are such, and take about as long as to make the tables of
-- others.
local function lone(key, args, now)
  local text, numbers = args[3], args[4]
  if #numbers ~= 25 then return nil end
  local num, den, burst = struct.unpack('>xddd', numbers)
  local count, wait, cost = struct.unpack('>xddd', args[5])
  local full = level.full(num, burst)
  local raw = full and attempt('GET', key)
  if not full or type(raw) == 'table' then return nil end
  local ahead, is_moved, ends = bare.read(raw, now, text, den, full)
  local admitted = ahead and bare.admitted(ahead, num, den, full, cost, wait, count)
  if not admitted then return nil end
  local tokens = admitted * cost
  if tokens > 0 or is_moved then
    local value, ends_then = bare.value(ahead + tokens * num, now, text, den, full)
    bare.write(key, value, ends_then, ends)
  end
  if admitted == count and ahead == 0 then return now end
  return format('%d %d %d', now, admitted, ahead)
end

-- Serves any call.
local function several(keys, args, now)
  local limits, at = level.limits(args, 2)
  local opened, n, stride, reply = buckets.open(keys, limits, now), #limits, #args > at and 1 or 0, {now}
  opened.aheads, opened.owners, opened.ends, opened.moved, opened.changed = {}, {}, {}, {}, {}
  local places = opened.places
  local terms, count, wait, cost
  for run = 1, #keys / n do
    if stride > 0 or run == 1 then
      terms = args[at + stride * (run - 1)]
      count, wait, cost = struct.unpack('>xddd', terms)
    end
    local base, told, admitted, from, acts = n * (run - 1), (n + 1) * (run - 1) + 2, count, now, now
    reply[told] = 0
    for p = 1, n do
      if #terms > 25 then cost = struct.unpack('>d', terms, 10 + 8 * p) end
      local fits
      reply[told + p], fits, from, acts = look(opened, places[base + p], limits[p], cost, wait, admitted)
      admitted = admitted >= 0 and fits or -1
    end
    reply[told] = admitted
    for p = 1, admitted >= 0 and n or 0 do
      if #terms > 25 then cost = struct.unpack('>d', terms, 10 + 8 * p) end
      charge(opened, places[base + p], limits[p], admitted * cost, from, acts)
    end
  end
  save(opened)
  buckets.save(opened)
  return reply
end

function operations.reserve(keys, args)
  local now = clock()
  return not keys[2] and lone(keys[1], args, now) or several(keys, args, now)
end
