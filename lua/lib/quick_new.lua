-- quick_new: serves a lone run on an item of the kind lib/exact without waiters, without the functions of
-- lib/quick_outcome: a claim of one that is new and free, or the confirmation or release of its holder.
local quick_tried = #KEYS == 6
if quick_tried and redis.call('EXISTS', KEYS[4]) == 0 then
  local pcall, verb, digest = redis.pcall, ARGV[6], ARGV[9]
  if verb == 'acquire' then
    local seen = pcall('HEXISTS', KEYS[2], digest)
    seen = seen == 0 and pcall('HEXISTS', KEYS[5], digest)
    seen = seen == 0 and pcall('HEXISTS', KEYS[6], digest)
    local set = seen == 0 and pcall('SET', KEYS[1], ARGV[7], 'PX', ARGV[3], 'NX')
    if set and set.ok then return now end
  elseif verb ~= 'bypass' and pcall('GET', KEYS[1]) == ARGV[7] then
    local ends = verb == 'release'
    if verb == 'complete' then -- as in lib/quick_exact
      local slice = math.floor((now + ARGV[8]) / ARGV[5])
      local hash = slice % 3 == 0 and KEYS[2] or slice % 3 == 1 and KEYS[5] or KEYS[6]
      local stored = pcall('HGET', hash, 's')
      ends = type(stored) == 'string' and tonumber(stored) == slice and pcall('HSET', hash, digest, '') == 1
    end
    if ends then
      redis.call('DEL', KEYS[1])
      return now
    end
  end
end
