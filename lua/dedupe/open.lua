-- dedupe/open: makes sure that all processes use the same layout for a name.
-- KEYS[1]   string, the layout
-- ARGV      the layout; its time to live (ms); or none: the stored layout is only read
-- returns   now (µs); then 1, or -1 if the key has another type, or the stored layout if it differs; nothing changes
--           unless 1 is returned
-- writes    the layout, with a time to live
local stored = redis.pcall('GET', KEYS[1])
if type(stored) == 'table' then return refused(stored) end
if stored and stored ~= ARGV[1] then return {now, string.sub(stored, 1, 200)} end
local saved = ARGV[1] and redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if saved and saved.err then return saved end
return {now, 1}
