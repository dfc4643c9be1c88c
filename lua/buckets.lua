-- buckets: the buckets of a call of 1 to n limits. The keys are those of run 1 in the order of the limits, then those of run 2,
-- ... A key may belong to many runs; its state is read once and written once. A cell is a table:
--   key, limit      the limit: of its last run
--   raw             what is stored (false: nothing); nil if that is not a bucket
--   state           its state, see bucket; false: not loaded
--   ahead, ends     its bare state instead, see bare; the second in which the key expires as it is stored, if known
--   is_new, is_swept   whether it is not as it was stored, see `load` in bucket; nil: no
--   change          nil: it has not changed; else whether tokens were taken from it
local buckets = {}

-- Reads keys. Returns a list of what is stored: a text; false for a missing key; a table for a key of another type.
local function read(cells)
  local names, missing = {}, {}
  for i = 1, #cells do names[i] = cells[i].key end
  local raw = call('MGET', unpack(names))
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

-- Opens the buckets. Returns their cells, by key, and in the order of their first runs.
function buckets.open(keys, limits)
  local n, cells, count = #limits, {}, 0
  for i = 1, #keys do
    local key = keys[i]
    if not cells[key] then
      local cell = {
        key = key, limit = limits[(i - 1) % n + 1], raw = false, state = false, ahead = false, ends = false,
        is_new = false, change = nil,
      }
      count = count + 1
      cells[key], cells[count] = cell, cell
    end
  end
  local raw = count > 1 and read(cells) or {attempt('GET', keys[1])}
  for i = 1, count do
    local stored = raw[i]
    if type(stored) == 'table' then
      if state.failure(stored) then error(stored.err, 0) end
      stored = nil
    end
    cells[i].raw = stored
  end
  return cells
end

-- Notes a change if the state is not as it was stored.
function buckets.renew(cell)
  if cell.is_new or cell.is_swept then buckets.change(cell, false) end
end

-- Notes that a cell has changed. `takes`: tokens were taken from it.
function buckets.change(cell, takes)
  cell.change = cell.change or takes
end

-- Returns the state of a cell under a limit; false if the key does not hold a bucket.
function buckets.state(cell, limit, now)
  if cell.state then
    -- It may be full by now, or of another limit.
    bucket.fit(cell.state, level.quotas(limit))
  elseif cell.raw ~= nil then
    local s, is_new, is_swept = bucket.load(cell.raw, level.quotas(limit), now)
    cell.state, cell.is_new = s or false, is_new
    if is_swept then cell.is_swept = true end
    if not s then cell.raw = nil end
  end
  cell.limit = limit
  return cell.state
end

-- Writes the cells that have changed.
function buckets.save(cells)
  for i = 1, #cells do
    local cell = cells[i]
    if cell.change ~= nil and cell.state then bucket.save(cell.key, cell.state, not cell.change) end
  end
end

-- Calls step(state, cell, run) for each run and limit, and returns the reply: the time, and what it returns for each;
-- -1 for a key that does not hold a bucket.
function buckets.each(keys, limits, now, step)
  local cells, reply = buckets.open(keys, limits), {now}
  for i, key in ipairs(keys) do
    local cell = cells[key]
    local s = buckets.state(cell, limits[(i - 1) % #limits + 1], now)
    if cell.is_swept then buckets.change(cell, false) end
    reply[i + 1] = s and step(s, cell, i) or -1
  end
  buckets.save(cells)
  return reply
end
