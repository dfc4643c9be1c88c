-- quick_new: serves a lone claim of an item that is new to the kind lib/exact, is free and has no waiters, without the
-- functions of lib/quick_outcome.
local quick_tried = ARGV[6] == 'acquire' and #KEYS == 6
if quick_tried and redis.call('EXISTS', KEYS[4]) == 0 then
  local pcall, digest = redis.pcall, ARGV[9]
  local seen = pcall('HEXISTS', KEYS[2], digest)
  seen = seen == 0 and pcall('HEXISTS', KEYS[5], digest)
  seen = seen == 0 and pcall('HEXISTS', KEYS[6], digest)
  local set = seen == 0 and pcall('SET', KEYS[1], ARGV[7], 'PX', ARGV[3], 'NX')
  if set and set.ok then return now end
end
