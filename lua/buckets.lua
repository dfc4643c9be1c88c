-- buckets: the buckets of a call of 1 to n limits. The keys are those of run 1 in the order of the limits, then those of run
-- 2, ... A key may belong to many runs, and is once in each; its state is read once and written once. The opened buckets are
-- a table: `now`; `names`, each key once, and `places`, where it is among them, per key of the call; and per place:
--   raw     what is stored (false: nothing); nil if that is not a bucket
--   cells   its state under the limit of its last run, once it is loaded: `state`, see bucket; `limit`; `is_new`, `is_swept`:
--           whether it is not as it was stored, see `load` in bucket; `change`: nil: it has not changed; else whether tokens
--           were taken from it
local buckets = {}

-- Reads keys. Returns a list of what is stored: a text; false for a missing key; a table for a key of another type.
local function read(names)
  if not names[2] then return {attempt('GET', names[1])} end
  local raw, missing = call('MGET', unpack(names)), {}
  for i = 1, #names do
    if not raw[i] then missing[#missing + 1] = names[i] end
  end
  -- MGET finds nothing in a key of another type; GET fails on it.
  if missing[1] and call('EXISTS', unpack(missing)) > 0 then
    for i, name in ipairs(names) do
      if not raw[i] then raw[i] = attempt('GET', name) end
    end
  end
  return raw
end

-- Opens the buckets. The runs of one limit that have the same key stand next to each other.
function buckets.open(keys, limits, now)
  local names, places, count, known = {}, {}, 0, limits[2] and {}
  for i = 1, #keys do
    local key = keys[i]
    local place = key == names[count] and count or known and known[key]
    if not place then
      count = count + 1
      place, names[count] = count, key
      if known then known[key] = count end
    end
    places[i] = place
  end
  local raw = read(names)
  for i = 1, count do
    if type(raw[i]) == 'table' then
      if state.failure(raw[i]) then error(raw[i].err, 0) end
      raw[i] = nil
    end
  end
  return {names = names, places = places, raw = raw, cells = {}, now = now}
end

-- Returns the cell of a place under a limit; nil if the key does not hold a bucket.
function buckets.cell(opened, place, limit)
  local cell = opened.cells[place]
  if cell then
    -- It may be full by now, or of another limit.
    bucket.fit(cell.state, limit)
    cell.limit = limit
  elseif opened.raw[place] ~= nil then
    local s, is_new, is_swept = bucket.load(opened.raw[place], limit, opened.now)
    if s then
      cell = {state = s, limit = limit, is_new = is_new, is_swept = is_swept, change = nil}
    else
      opened.raw[place] = nil
    end
    opened.cells[place] = cell
  end
  return cell
end

-- Notes that a cell has changed. `takes`: tokens were taken from it.
function buckets.change(cell, takes)
  cell.change = cell.change or takes
end

-- Notes a change if the state is not as it was stored.
function buckets.renew(cell)
  if cell.is_new or cell.is_swept then buckets.change(cell, false) end
end

-- Writes what has changed.
function buckets.save(opened)
  for place = 1, #opened.names do
    local cell = opened.cells[place]
    if cell and cell.change ~= nil then bucket.save(opened.names[place], cell.state, not cell.change) end
  end
end

-- Calls step(state, cell, run) for each run and limit, and returns the reply: the time, and what it returns for each; -1 for
-- a key that does not hold a bucket.
function buckets.each(keys, limits, now, step)
  local opened, reply = buckets.open(keys, limits, now), {now}
  for i = 1, #keys do
    local cell = buckets.cell(opened, opened.places[i], limits[(i - 1) % #limits + 1])
    if cell and cell.is_swept then buckets.change(cell, false) end
    reply[i + 1] = cell and step(cell.state, cell, i) or -1
  end
  buckets.save(opened)
  return reply
end
