-- dedupe/look: returns whether an item was handled.
-- KEYS      the three hashes of the bucket (see lib/exact)
-- ARGV      the length of a slice (µs), the shift (µs), the digest
-- returns   now (µs); 1: it was handled; 0: it was not; -1: a key is of another type
-- writes    nothing
local oldest = math.floor((now + ARGV[2]) / ARGV[1]) - 2
for _, hash in ipairs(KEYS) do
  local found = redis.pcall('HEXISTS', hash, ARGV[3])
  if type(found) == 'table' then return refused(found) end
  if found == 1 and (tonumber(redis.call('HGET', hash, 's') or 0) or 0) >= oldest then return {now, 1} end
end
return {now, 0}
