-- runs: lets all scripts except reserve process several buckets in one call, one run each. Joined after lib/bucket.
-- KEYS[i] is the bucket of run i; the runs of one bucket are adjacent.
local on = on_tables()

-- Calls step(state in table form, i, whether a quota is new to it) for each run. It returns the run's field of the
-- reply, and whether it changed the state. Changed states are written with `write`. The answer is -1 for a run whose
-- key does not hold a bucket. If there is a function `turn`, `turn(i)` is called before each run.
local function each_run(step, write, turn)
  local keys, nth, reply = {}, 0, {now}
  for i, key in ipairs(KEYS) do
    if key ~= KEYS[i - 1] then keys[#keys + 1] = key end
  end
  local raw = #keys > 1 and redis.call('MGET', unpack(keys)) or {}
  local s, is_new, swept, changed
  for i, key in ipairs(KEYS) do
    if turn then turn(i) end
    if key ~= KEYS[i - 1] then
      nth = nth + 1
      local stored = raw[nth] or call('GET', key) -- MGET finds nothing in a key of another type; GET fails on it
      local failed = type(stored) == 'table'
      if failed and not string.find(stored.err, 'WRONGTYPE', 1, true) then return stored end
      s, is_new, swept, changed = nil, false, false, false
      if not failed then s, is_new, swept = on.load(stored) end
    end
    local answer, changes = -1, false
    if s and key == KEYS[i - 1] then s = on.rested(s) end
    if s then answer, changes = step(s, i, is_new) end
    reply[i + 1], changed = answer, changed or changes or swept
    if write and changed and key ~= KEYS[i + 1] then
      local saved = write(key, s)
      if type(saved) == 'table' and saved.err then return saved end
    end
  end
  return reply
end
