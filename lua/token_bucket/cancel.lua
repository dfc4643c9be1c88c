-- token_bucket/cancel: gives back tokens of charges.
-- KEYS[i]  string, the bucket of run i; the runs of one bucket are adjacent. With several sets of quotas: the bucket of
--          limit i
-- ARGV     sets of quotas (see lib/several); then per run, or per limit:
--   cost    tokens
--   at, age µs; which tokens come back:
--           at, -since: those on which no later charge depends (as CancelAt of Go's x/time/rate), until the time `at`;
--                    none if the clock is before `since`: it was set back after the charge
--           -1, -1:  all if nothing was charged after them, otherwise none. The request never acts
--           at, age: all minus those that came back since the charge, which was made at the time `at` by the server's
--                    clock, and was `age` old by the client's; none while a reservation is pending
--   then per quota: the TAT after the charge (whole, part), and the latest TAT of the reservations that were pending
--   before the charge (last, rest), or the window of a calendar quota; -1, -1 as the TAT of a quota that never refills or is
--   of a calendar: give nothing back
-- returns  now (µs); then per run: 1 if anything was given back, else 0; -1 if the key does not hold a bucket
-- writes   changed buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills); DEL when idle
-- cost     one MGET, one SET per changed bucket, one GET per bucket that MGET does not find

-- Raises the latest TAT of the pending reservations, at `o`, to at least (whole, part).
local function at_least(s, o, whole, part)
  if on.later(whole, part, s[o + 2], s[o + 3]) then s[o + 2], s[o + 3] = whole, part end
end

local a, after = first, first
return each_run(function(s, _, is_new)
  local cost, at, age, given = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), 0
  local unused = age >= 0
  if is_new or (not unused and at >= 0 and (now > at or now < -age)) then return 0, false end
  -- The four numbers of quota q.
  local function trace(q)
    local b = a + 4 * q - 1
    return tonumber(ARGV[b]), tonumber(ARGV[b + 1]), tonumber(ARGV[b + 2]), tonumber(ARGV[b + 3])
  end
  -- Nothing is known of the charge if the bucket was reset since, or has no level for these quotas.
  for q = 1, unused and 0 or quotas do
    local mine, part = trace(q)
    if num[q] ~= 0 and on.later(mine, part, s[7 * q - 3], s[7 * q - 2]) then return 0, false end
  end
  for q = 1, quotas do
    local o = 7 * q - 5
    local mine, part, last, rest = trace(q)
    local back, over = 0, 0
    if num[q] == 0 then
      local left = max(0, s[o] - cost)
      local can = mine >= 0 and (den[q] == 1 or calendar().can_give_back(s, o, mine, last))
      if left < s[o] and can then s[o], given = left, 1 end
    elseif unused then
      local held = s.holds and on.advance(q, 0, 0, s.holds.held) or 0
      if not on.later(mine, part, s[o], s[o + 1]) and max(s[o], s[o + 2]) <= now + on.span(q) - held then
        -- The bucket was not reset since, and no reservation is pending.
        back, over = on.advance(q, 0, 0, cost)
        back = back - max(age, now - at)
      end
    elseif at >= 0 or (mine > now and s[o] == mine and s[o + 1] == part and s[o + 2] == mine and s[o + 3] == part) then
      local charge, crumb = on.advance(q, 0, 0, cost)
      local built, bit = on.minus(q, s[o + 2], s[o + 3], mine, part)
      back, over = on.minus(q, charge, crumb, built, bit)
      if built == 0 and bit == 0 then
        s[o + 2], s[o + 3] = on.minus(q, mine, part, charge, crumb)
        at_least(s, o, last, rest)
        if on.later(mine, part, s[o], s[o + 1]) then at_least(s, o, s[o], s[o + 1]) end
      end
    end
    if on.later(back, over, 0, 0) then
      s[o], s[o + 1] = on.minus(q, s[o], s[o + 1], back, over)
      if unused then s[o + 2], s[o + 3] = s[o], s[o + 1] end
      given = 1
    end
  end
  return given, given == 1
end, function(key, s) return on.save(key, s, false, true) end, function(i)
  under(i)
  a, after = after, after + 3 + 4 * quotas
end)
