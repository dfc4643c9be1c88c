-- quick_lead: serves a lone flight that is free and has no waiters and no answer, without the functions of
-- lib/quick_outcome.
local quick_tried = ARGV[6] == 'acquire' and #KEYS == 4
if quick_tried and redis.call('EXISTS', KEYS[2], KEYS[4]) == 0 then
  local set = redis.pcall('SET', KEYS[1], ARGV[7], 'PX', ARGV[3], 'NX')
  if set and set.ok then return now end
end
