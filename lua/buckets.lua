-- buckets: the buckets of a call of 1 to n limits. The keys are those of run 1 in the order of the limits, then those
-- of run 2, ... A key may belong to many runs, and occurs once in each. Each key is read once, before anything is
-- written, and written once. The opened buckets are a table from keys to states, see bucket. False: the key does not
-- hold a bucket, or was written.

-- Returns the state of a key under a limit; false if the key does not hold a bucket.
function buckets.open(opened, key, limit, now)
  local s = opened[key]
  if s == nil then
    s = bucket.load(bucket.stored(key), limit, now) or false
    opened[key] = s
  elseif s then
    -- It may be full by now, or of another limit.
    bucket.fit(s, limit)
  end
  return s
end

-- Writes the changed states.
function buckets.save(opened, keys)
  for i = 1, #keys do
    local key = keys[i]
    if opened[key] then bucket.save(key, opened[key]) end
    opened[key] = false
  end
end

-- Calls step(s, run) for each run and limit, and returns the reply: the time, and the result of each step; -1 for a key
-- that does not hold a bucket.
function buckets.each(keys, limits, now, step)
  local opened, reply = {}, {now}
  for i = 1, #keys do
    local s = buckets.open(opened, keys[i], limits[(i - 1) % #limits + 1], now)
    if s and s.is_swept then bucket.change(s, false) end
    reply[i + 1] = s and step(s, i) or -1
  end
  buckets.save(opened, keys)
  return reply
end
