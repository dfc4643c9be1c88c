-- bare: states as one number instead of a table: the time from now to the TAT, in den-ths of a µs; 0 if the bucket is full.
-- Nearly all states are such: one quota, which refills; one level, neither blocked, nor with holds or a cancelled
-- reservation; and less than 2^53 den-ths, so that the number is exact. It is stored with the time at which it was written if
-- it is more than the burst; see bucket.
local bare = {}

-- Reads a stored state (false: none). Nil if it is not bare. The second value is whether the clock was set back since it was
-- written, the third one the second in which the key expires.
function bare.read(raw, limit, now)
  if not raw then return 0, false, false end
  local whole, part, text = match(raw, '^(%d+) (%d+) (.*)$')
  if not whole then return nil end
  local seen
  if text ~= limit.text then
    seen = number(match(text, '^' .. limit.text .. ' (%d+)$') or '')
    if not seen then return nil end
  end
  whole, part = whole + 0, part + 0
  if whole >= 2 * lift or part >= limit.den then return nil end
  local from = seen and seen > now and seen or now
  local ahead = whole < from and 0 or (whole - from) * limit.den + part
  if ahead >= 2 * lift then return nil end
  local idle = part > 0 and whole + 1 or whole
  local ends = idle - idle % second
  if ahead > limit.full and not seen then return limit.full, true, ends end
  return ahead, from > now, ends
end

-- The value that is stored for a bare state, and the second in which its key expires.
function bare.value(ahead, limit, now)
  local part = ahead % limit.den
  local whole = now + (ahead - part) / limit.den
  local value = format('%d %d %s', whole, part, limit.text)
  if ahead > limit.full then value = format('%s %d', value, now) end
  if part > 0 then whole = whole + 1 end
  return value, whole - whole % second
end

-- The number of `count` equal requests that fit. Nil if the state may not be bare after them.
function bare.admitted(ahead, limit, cost, wait, count)
  local price, top = cost * limit.num, wait * limit.den + limit.full
  if top >= 2 * lift and ahead + count * price >= 2 * lift then return nil end
  local free = top - ahead
  if count * price <= free then return count end
  return free >= price and floor(free / price) or 0
end

-- Writes a value whose key expires at the end of the second `ends`. `was`: that of the stored value, if known: to set an
-- expiry again costs more than all the rest.
function bare.write(key, value, ends, was)
  local saved
  if was == ends then
    saved = attempt('SET', key, value, 'KEEPTTL')
  else
    saved = attempt('SET', key, value, 'PXAT', bucket.pxat(ends))
  end
  if saved.err then error(saved.err, 0) end
end
