-- token_bucket/adjust: charges tokens without a check, or adds tokens; and blocks the bucket.
-- KEYS[i]  string, the bucket of run i; the runs of one bucket are adjacent
-- ARGV     quotas (see lib/bucket); then per run, or once for all runs: tokens to charge, negative to add; how
--          long to block (µs; a longer block that exists is kept), 0: not at all
-- returns  now (µs); then per run: the state after it, or -1 if the key does not hold a bucket
-- writes   the buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills); DEL when idle
-- cost     one MGET, one SET per bucket, one GET per bucket that MGET does not find
local function charge(s, at, tokens)
  for q = 1, quotas do
    local o = 7 * q - 5
    if num[q] == 0 and den[q] > 1 then
      calendar().overuse(s, o, at, tokens)
    elseif num[q] == 0 then
      s[o] = max(s[o], min(s[o] + tokens, longest))
    else
      local pending = s[o + 2] - on.span(q) > now
      local whole, part = s[o], s[o + 1]
      if whole < at then whole, part = at, 0 end
      if tokens * (num[q] / den[q]) > longest then
        whole, part = now + longest, 0
      else
        whole, part = on.advance(q, whole, part, tokens)
        if on.later(whole, part, now + longest, 0) then whole, part = now + longest, 0 end
      end
      if on.later(whole, part, s[o], s[o + 1]) then s[o], s[o + 1] = whole, part end
      if not pending or on.later(s[o], s[o + 1], s[o + 2], s[o + 3]) then s[o + 2], s[o + 3] = s[o], s[o + 1] end
    end
  end
end

local function give(s, tokens)
  for q = 1, quotas do
    local o = 7 * q - 5
    if num[q] == 0 then
      s[o] = max(0, s[o] - tokens)
    elseif s[o] > now then
      local whole, part = now, 0
      if tokens * (num[q] / den[q]) <= longest then
        local back, rest = on.advance(q, 0, 0, tokens)
        whole, part = on.minus(q, s[o], s[o + 1], back, rest)
        if whole < now then whole, part = now, 0 end
      end
      local pending = s[o + 2] - on.span(q) > now
      s[o], s[o + 1] = whole, part
      if not pending then s[o + 2], s[o + 3] = whole, part end
    end
  end
end

local takes -- the key whose tokens were charged, or that was blocked, last
local stride = #ARGV == first + 1 and 0 or 2
return each_run(function(s, i)
  local a = first + stride * (i - 1)
  local tokens, block = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  if tokens > 0 then charge(s, max(now, s[1]), tokens) elseif tokens < 0 then give(s, -tokens) end
  if block > 0 then s[1] = max(s[1], now + block) end
  if tokens > 0 or block > 0 then takes = KEYS[i] end
  return on.told(s), true
end, function(key, s) return on.save(key, s, false, key ~= takes) end)
