-- bare: states as one number instead of a table: the time from now to the TAT, in den-ths of a µs; 0 if the bucket is
-- full. Nearly all states are such: one quota, which refills; one level, neither blocked nor with a cancelled
-- reservation; and less than 2^53 den-ths, so that the number is exact. Joined after lib/bucket.
local match = string.match

-- The text after the TAT in a stored bare state, and the pattern of such a state; nil if the quotas do not allow them.
local function bare_form()
  if quotas > 1 or num[1] == 0 then return nil end
  local ending = format(' %d %d %d', num[1], den[1], burst[1])
  return ending, '^(%d+) (%d+)' .. ending .. '$'
end

-- The TAT of a bare state.
local function bare_tat(ahead, parts)
  local part = ahead % parts
  return now + (ahead - part) / parts, part
end

-- Reads a stored state under a quota with `parts` parts of a µs. Nil if it is not bare. `raw` is false if nothing is
-- stored.
local function read_bare(raw, pattern, parts)
  if not raw then return 0 end
  local whole, part = match(raw, pattern)
  if not whole then return nil end
  whole, part = tonumber(whole), tonumber(part)
  if whole >= limit or part >= parts then return nil end
  local ahead = whole < now and 0 or (whole - now) * parts + part
  return ahead < limit and ahead or nil
end

-- Writes a state and returns the reply of Redis. `unknown`: see `save` in lib/bucket. Repeated values are formatted
-- once.
local last_ahead, last_ending, value, ends, expiry
local function save_bare(key, ahead, parts, ending, unknown)
  if ahead ~= last_ahead or ending ~= last_ending then
    local whole, part = bare_tat(ahead, parts)
    last_ahead, last_ending, value = ahead, ending, format('%d %d', whole, part) .. ending
    if part > 0 then whole = whole + 1 end
    local from = whole - whole % second
    if from ~= ends then ends, expiry = from, pxat(whole) end
  end
  if unknown then return call('SET', key, value, 'PXAT', expiry, 'GET') end
  return call('SET', key, value, 'PXAT', expiry)
end
