-- dedupe/open: makes sure that all who use a name use one layout.
-- KEYS[1]   string, the layout
-- ARGV      the layout; for how long it is kept (ms)
-- returns   now (µs); 1, -1 where the key is of another type, or the layout that is stored: then nothing is changed
-- writes    the layout, with a time to live
local stored = redis.pcall('GET', KEYS[1])
if type(stored) == 'table' then
  if string.find(stored.err, 'WRONGTYPE', 1, true) then return {now, -1} end
  return stored
end
if stored and stored ~= ARGV[1] then return {now, string.sub(stored, 1, 200)} end
local saved = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if saved.err then return saved end
return {now, 1}
