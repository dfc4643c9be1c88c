-- token_bucket/give_back: gives back unused prefetched tokens, minus the tokens that came back since the charge.
-- KEYS[i]  string, the bucket of run i; the runs of one bucket are adjacent
-- ARGV     quotas (see lib/bucket); then per run: tokens; time of the charge by the server's clock (µs); age of the
--          charge by the client's clock (µs); then per quota the TAT after the charge: whole, part
-- returns  now (µs); then per run: 1 if anything was given back, else 0; -1 if the key does not hold a bucket
-- writes   changed buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills); DEL when idle
-- cost     one MGET, one SET per changed bucket, one GET per bucket that MGET does not find
local width = 3 + 2 * quotas
return each_run(function(s, i, is_new)
  local a = first + width * (i - 1)
  local tokens, age, given = tonumber(ARGV[a]), max(now - tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])), 0
  if is_new then return 0, false end
  for q = 1, quotas do
    local o = 7 * q - 5
    local whole, part = s[o], s[o + 1]
    if num[q] == 0 then
      local left = max(0, whole - tokens)
      if left < whole then s[o], given = left, 1 end
    elseif not on.later(tonumber(ARGV[a + 1 + 2 * q]), tonumber(ARGV[a + 2 + 2 * q]), whole, part)
      and max(whole, s[o + 2]) <= now + on.span(q) then
      -- The bucket was not reset since, and no reservation is pending.
      local back, rest = on.advance(q, 0, 0, tokens)
      back = back - age
      if back >= 0 and back + rest > 0 then
        s[o], s[o + 1] = on.minus(q, whole, part, back, rest)
        s[o + 2], s[o + 3], given = s[o], s[o + 1], 1
      end
    end
  end
  return given, given == 1
end, on.save)
