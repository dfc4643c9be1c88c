-- bare: states as one number instead of a table: the time from now to the TAT, in den-ths of a µs; 0 if the bucket is
-- full. Nearly all states are bare: one quota, which refills; one level, not blocked, without holds or a cancelled
-- reservation; and less than 2^53 den-ths, so that the number is exact. If the number exceeds the burst, it is stored
-- with the time of the write; see bucket.

-- Reads what a key stores (see `stored` in bucket). `text`, `den` and `full` belong to the limit, see level. Returns
-- nil if the state is not bare; otherwise the number, whether the clock was set back since the write, and the second in
-- which the key expires.
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

-- Returns the stored value of a bare state, and the second in which its key expires.
function bare.value(ahead, now, text, den, full)
  local part = ahead % den
  local whole = now + (ahead - part) / den
  local value = format('%d %d %s', whole, part, text)
  if ahead > full then value = format('%s %d', value, now) end
  if part > 0 then whole = whole + 1 end
  return value, whole - whole % second
end

-- Returns the number of `count` equal requests that fit; nil if the state may not be bare after them.
function bare.admitted(ahead, num, den, full, cost, wait, count)
  local price, top = cost * num, wait * den + full
  if top >= 2 * lift and ahead + count * price >= 2 * lift then return nil end
  local free = top - ahead
  if count * price <= free then return count end
  return free >= price and floor(free / price) or 0
end

-- Writes a value whose key expires at the end of the second `ends`. `was`: the second in which the stored value
-- expires, if known: setting an expiry again costs more than the rest. `expiry`: the text of the expiry, if already
-- computed. Returns that text.
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
