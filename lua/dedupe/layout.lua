-- dedupe/layout: returns the stored layout, unchanged.
-- KEYS[1]   string, the layout
-- ARGV      none
-- returns   now (µs); the layout; 0: there is none; -1: the key is of another type
-- writes    nothing
local stored = redis.pcall('GET', KEYS[1])
if type(stored) == 'table' then
  if string.find(stored.err, 'WRONGTYPE', 1, true) then return {now, -1} end
  return stored
end
return {now, stored or 0}
