-- bare: states as one number instead of a table: the time from now to the TAT, in den-ths of a µs; 0 if the bucket is
-- full. Nearly all states are such: one quota, which refills; one level, neither blocked nor with a cancelled
-- reservation; and less than 2^53 den-ths, so that the number is exact. It is stored with the time at which it was
-- written if it is more than `full`, the burst; see lib/bucket. Joined after lib/bucket.
local match = string.match

-- The text after the TAT in a stored bare state, and the pattern of such a state; nil if the quotas do not allow them.
local function bare_form()
  if quotas > 1 or num[1] == 0 then return nil end
  local ending = format(' %d %d %d', num[1], den[1], burst[1])
  return ending, '^(%d+) (%d+)' .. ending .. '%f[%D] ?(%d*)$'
end

-- The TAT of a bare state.
local function bare_tat(ahead, parts)
  local part = ahead % parts
  return now + (ahead - part) / parts, part
end

-- Reads a stored state under a quota with `parts` parts of a µs. Nil if it is not bare. `raw` is false if nothing is
-- stored. The second value is whether the clock was set back since the state was written.
local function read_bare(raw, pattern, parts, full)
  if not raw then return 0, false end
  local whole, part, seen = match(raw, pattern)
  if not whole then return nil end
  whole, part, seen = tonumber(whole), tonumber(part), tonumber(seen)
  if whole >= limit or part >= parts then return nil end
  local from = seen and seen > now and seen or now
  local ahead = whole < from and 0 or (whole - from) * parts + part
  if ahead >= limit then return nil end
  if ahead > full and not seen then return full, true end
  return ahead, from > now
end

-- The value that is stored for a bare state.
local function bare_value(ahead, parts, ending, full)
  local whole, part = bare_tat(ahead, parts)
  if ahead > full then ending = format('%s %d', ending, now) end
  return format('%d %d', whole, part) .. ending, whole, part
end

-- Writes a state and returns the reply of Redis. `unknown`: see `save` in lib/bucket. Repeated values are formatted
-- once.
local last_ahead, last_ending, value, ends, expiry
local function save_bare(key, ahead, parts, ending, full, unknown)
  if ahead ~= last_ahead or ending ~= last_ending then
    local whole, part
    value, whole, part = bare_value(ahead, parts, ending, full)
    last_ahead, last_ending = ahead, ending
    if part > 0 then whole = whole + 1 end
    local from = whole - whole % second
    if from ~= ends then ends, expiry = from, pxat(whole) end
  end
  if unknown then return call('SET', key, value, 'PXAT', expiry, 'GET') end
  return call('SET', key, value, 'PXAT', expiry)
end
