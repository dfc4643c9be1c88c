-- dedupe/forget: removes a handled item, so that it is new again.
-- KEYS      the three hashes of the bucket (see lib/exact)
-- ARGV      the digest
-- returns   now (µs); 1: it was stored; 0: it was not; -1: a key is of another type
-- writes    HDEL
local stored = 0
for _, hash in ipairs(KEYS) do
  local gone = redis.pcall('HDEL', hash, ARGV[1])
  if type(gone) == 'table' then return refused(gone) end
  stored = math.max(stored, gone)
end
return {now, stored}
