-- token_bucket/cancel: gives back what later reservations have not built upon (Go's x/time/rate, CancelAt).
-- KEYS[1]  string, the bucket
-- ARGV     quotas (see lib/bucket); cost (tokens); act (µs, no-op after it; -1: nobody ever acts on it, so it
--          is rolled back if nothing has come after it);
--          then per quota the TAT that the reservation led to, and the latest TAT of the reservations that
--          were yet to act before it: whole, part, last, rest
-- returns  now (µs); 1 if anything was given back, else 0
-- writes   the bucket as it stands after, SET with PX until full and unblocked; DEL when that is now
local cost, act = tonumber(ARGV[first]), tonumber(ARGV[first + 1])
if act >= 0 and now > act then return {now, 0} end
local s, given = load_full(KEYS[1]), 0

-- (whole, part) less (other, rest), in den-ths of quota q.
local function minus(q, whole, part, other, rest)
  if part < rest then return whole - other - 1, part + den[q] - rest end
  return whole - other, part - rest
end

-- Makes the latest TAT of the reservations yet to act, at `o`, no earlier than (whole, part).
local function at_least(o, whole, part)
  if later(whole, part, s[o + 2], s[o + 3]) then s[o + 2], s[o + 3] = whole, part end
end

-- A bucket that was reset since knows nothing of the charge.
for q = 1, quotas do
  local o, a = 4 * q - 2, first + 4 * q - 2
  if num[q] ~= 0 and later(tonumber(ARGV[a]), tonumber(ARGV[a + 1]), s[o + 2], s[o + 3]) then return {now, 0} end
end

for q = 1, quotas do
  local o, a = 4 * q - 2, first + 4 * q - 2
  local mine, part = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  if num[q] == 0 then
    local left = max(0, s[o] - cost)
    if left < s[o] then s[o], given = left, 1 end
  elseif act >= 0 or (mine > now and s[o] == mine and s[o + 1] == part and s[o + 2] == mine and s[o + 3] == part) then
    local charge, crumb = advance(q, 0, 0, cost)
    local built, bit = minus(q, s[o + 2], s[o + 3], mine, part)
    local back, rest = minus(q, charge, crumb, built, bit)
    if built == 0 and bit == 0 then
      s[o + 2], s[o + 3] = minus(q, mine, part, charge, crumb)
      at_least(o, tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]))
      if later(mine, part, s[o], s[o + 1]) then at_least(o, s[o], s[o + 1]) end
    end
    if later(back, rest, 0, 0) then
      s[o], s[o + 1] = minus(q, s[o], s[o + 1], back, rest)
      given = 1
    end
  end
end
local saved = given == 1 and save(KEYS[1], s)
if type(saved) == 'table' and saved.err then return saved end
return {now, given}
