-- cancel: gives back the part of a charge on which no later charge depends (as CancelAt of Go's x/time/rate). Joined
-- after lib/runs.

-- Raises the latest TAT of the pending reservations, at `o`, to at least (whole, part).
local function at_least(s, o, whole, part)
  if on.later(whole, part, s[o + 2], s[o + 3]) then s[o + 2], s[o + 3] = whole, part end
end

-- Cancels the charge that the arguments from ARGV[a] on describe:
--   cost   tokens
--   act    µs: after this time nothing is given back. -1: the request never acts, so the whole charge is given back if
--          nothing was charged after it, otherwise nothing
--   then per quota: the TAT after the charge (whole, part), and the latest TAT of the reservations that were pending
--   before the charge (last, rest); -1, -1 as the TAT of a quota that never refills: give nothing back
-- Returns 1 if anything was given back, else 0; and whether the state has changed.
local function cancel(s, a, is_new)
  local cost, act, given = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), 0
  if is_new or (act >= 0 and now > act) then return 0, false end
  -- The four numbers of quota q.
  local function trace(q)
    local b = a + 4 * q - 2
    return tonumber(ARGV[b]), tonumber(ARGV[b + 1]), tonumber(ARGV[b + 2]), tonumber(ARGV[b + 3])
  end
  -- Nothing is known of the charge if the bucket was reset since, or has no level for these quotas.
  for q = 1, quotas do
    local mine, part = trace(q)
    if num[q] ~= 0 and on.later(mine, part, s[7 * q - 3], s[7 * q - 2]) then return 0, false end
  end
  for q = 1, quotas do
    local o = 7 * q - 5
    local mine, part, last, rest = trace(q)
    if num[q] == 0 then
      local left = max(0, s[o] - cost)
      if left < s[o] and mine >= 0 then s[o], given = left, 1 end
    elseif act >= 0 or (mine > now and s[o] == mine and s[o + 1] == part and s[o + 2] == mine and s[o + 3] == part) then
      local charge, crumb = on.advance(q, 0, 0, cost)
      local built, bit = on.minus(q, s[o + 2], s[o + 3], mine, part)
      local back, over = on.minus(q, charge, crumb, built, bit)
      if built == 0 and bit == 0 then
        s[o + 2], s[o + 3] = on.minus(q, mine, part, charge, crumb)
        at_least(s, o, last, rest)
        if on.later(mine, part, s[o], s[o + 1]) then at_least(s, o, s[o], s[o + 1]) end
      end
      if on.later(back, over, 0, 0) then
        s[o], s[o + 1] = on.minus(q, s[o], s[o + 1], back, over)
        given = 1
      end
    end
  end
  return given, given == 1
end
