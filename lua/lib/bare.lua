-- bare: states that are a bare number, where they are by far the most: read and written without a table. Joined after
-- lib/bucket.

-- What follows the number where it is stored; nil where the quotas need more than one.
local function bare_ending()
  if quotas == 1 and den[1] == 1 and num[1] > 0 then return format(' 0 %d 1 %d', num[1], burst[1]) end
end

-- The TAT of the state that is stored as `raw`; nil where that is none in this form.
local function read_bare(raw, ending)
  local digits = #raw - #ending
  if sub(raw, digits + 1) ~= ending then return nil end
  local tat = tonumber(sub(raw, 1, digits))
  if tat and tat > 0 and tat < limit then return tat end
end

-- Writes a state; returns what Redis answers. `unknown`: as of `save` in lib/bucket. What repeats is formatted once.
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
