-- correct: corrects buckets, reads them, and prefetches tokens. Keys: see buckets. Arguments: quotas (see level),
-- except for `peek` and `reset`; then those of each run, or one set for all runs.
-- Returns    now (µs); then per run its answer, or -1 if the key does not hold a bucket
-- Writes     changed buckets, SET with PXAT (see bucket; no PXAT if a quota never refills); DEL when idle

-- Returns the number of arguments per run from `at` on; 0: one set for all runs.
local function stride(args, at, each)
  return #args < at + each and 0 or each
end

-- Charges tokens without a check, or adds tokens; and blocks the bucket.
-- Arguments  tokens to charge, negative to add; how long to block (µs; an existing longer block is kept), 0: no block
-- Answer     the state after it
function operations.adjust(keys, args)
  local now, limits, first = clock(), level.limits(args, 2)
  local width = stride(args, first, 2)
  return buckets.each(keys, limits, now, function(s, run)
    local at = first + width * (run - 1)
    local tokens, block, start = number(args[at]), number(args[at + 1]), max(now, s.blocked)
    for q = 1, s.ours do
      if tokens > 0 then level.overdraw(s.levels[q], now, start, tokens, start) end
      if tokens < 0 then level.give(s.levels[q], now, -tokens) end
    end
    if block > 0 then s.blocked = max(s.blocked, now + block) end
    bucket.change(s, tokens > 0 or block > 0)
    return bucket.told(s)
  end)
end

-- Charges tokens for requests that will come later.
-- Arguments  maximum number of tokens
-- Answer     a list: the number of tokens, at most a quarter of those available now, and 0 if that is less than 8; then the
--            state after it
function operations.prefetch(keys, args)
  local now, limits, first = clock(), level.limits(args, 2)
  local width = stride(args, first, 1)
  return buckets.each(keys, limits, now, function(s, run)
    local count = 0
    if s.blocked <= now then
      count = min(number(args[first + width * (run - 1)]), floor(bucket.free(s, now, 0, now) / 4))
      if count < 8 then count = 0 else bucket.charge(s, now, count, now) end
    end
    if s.is_new or count > 0 then bucket.change(s, true) end
    return {count, unpack(bucket.told(s))}
  end)
end

-- Answer     all levels with their quotas (see `all` in bucket)
function operations.peek(keys)
  return buckets.each(keys, {{quotas = {}}}, clock(), function(s)
    s.change = nil
    return bucket.all(s)
  end)
end

-- Fills and unblocks a bucket. Returns now (µs).
function operations.reset(keys)
  call('DEL', keys[1])
  return {clock()}
end
