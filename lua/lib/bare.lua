-- bare: reads and writes states that are a bare number without a table. Nearly all states are such. Joined after
-- lib/bucket.

-- The text after the number in a stored bare state; nil if the quotas do not allow bare states.
local function bare_ending()
  if quotas == 1 and den[1] == 1 and num[1] > 0 then return format(' 0 %d 1 %d', num[1], burst[1]) end
end

-- The TAT of a stored bare state; nil if `raw` is not in this form.
local function read_bare(raw, ending)
  local digits = #raw - #ending
  if sub(raw, digits + 1) ~= ending then return nil end
  local tat = tonumber(sub(raw, 1, digits))
  if tat and tat > 0 and tat < limit then return tat end
end

-- Writes a state and returns the reply of Redis. `unknown`: see `save` in lib/bucket. Repeated values are formatted
-- once.
local last_tat, last_ending, value, ends, expiry
local function save_bare(key, tat, ending, unknown)
  local from = tat - tat % second
  if from ~= ends then ends, expiry = from, pxat(tat) end
  if tat ~= last_tat or ending ~= last_ending then
    last_tat, last_ending, value = tat, ending, format('%d', tat) .. ending
  end
  if unknown then return call('SET', key, value, 'PXAT', expiry, 'GET') end
  return call('SET', key, value, 'PXAT', expiry)
end
