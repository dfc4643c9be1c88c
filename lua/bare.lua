-- bare: states as one number instead of a table: the time from now to the TAT, in den-ths of a µs; 0 if the bucket is full.
-- Nearly all states are such: one quota, which refills; one level, neither blocked, nor with holds or a cancelled
-- reservation; and less than 2^53 den-ths, so that the number is exact. It is stored with the time at which it was written if
-- it is more than the burst; see bucket.

-- Reads what a key stores (see `stored` in bucket). `text`, `den` and `full`: of the limit, see level. Nil if it is not bare.
-- The second value is whether the clock was set back since it was written, the third one the second in which the key expires.
function bare.read(raw, now, text, den, full)
  if not full or raw == nil then return nil end
  if not raw then return 0, false, false end
  local whole, part, quota = match(raw, '^(%d+) (%d+) (.*)$')
  if not whole then return nil end
  local seen
  if quota ~= text then
    seen = number(match(quota, '^' .. text .. ' (%d+)$') or '')
    if not seen or seen >= 2 * lift then return nil end
  end
  whole, part = whole + 0, part == '0' and 0 or part + 0
  if whole >= 2 * lift or part >= den then return nil end
  local from = seen and seen > now and seen or now
  local ahead = whole < from and 0 or (whole - from) * den + part
  if ahead >= 2 * lift then return nil end
  local idle = part > 0 and whole + 1 or whole
  local ends = idle - idle % second
  if ahead > full and not seen then return full, true, ends end
  return ahead, from > now, ends
end

-- The value that is stored for a bare state, and the second in which its key expires.
function bare.value(ahead, now, text, den, full)
  local part = ahead % den
  local whole = now + (ahead - part) / den
  local value = format('%d %d %s', whole, part, text)
  if ahead > full then value = format('%s %d', value, now) end
  if part > 0 then whole = whole + 1 end
  return value, whole - whole % second
end

-- The number of `count` equal requests that fit. Nil if the state may not be bare after them.
function bare.admitted(ahead, num, den, full, cost, wait, count)
  local price, top = cost * num, wait * den + full
  if top >= 2 * lift and ahead + count * price >= 2 * lift then return nil end
  local free = top - ahead
  if count * price <= free then return count end
  return free >= price and floor(free / price) or 0
end

-- Writes a value whose key expires at the end of the second `ends`. `was`: that of the stored value, if known: to set an
-- expiry again costs more than all the rest. `expiry`: the text of the expiry, if it is there. Returns it.
function bare.write(key, value, ends, was, expiry)
  local saved
  if was == ends then
    saved = attempt('SET', key, value, 'KEEPTTL')
  else
    expiry = expiry or bucket.pxat(ends)
    saved = attempt('SET', key, value, 'PXAT', expiry)
  end
  if saved.err then error(saved.err, 0) end
  return expiry
end
