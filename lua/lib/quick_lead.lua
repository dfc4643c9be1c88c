-- quick_lead: serves a lone run on a flight without waiters, without the functions of lib/quick_outcome: an acquire of one
-- that is free and has no answer, or the publication or release of its leader.
local quick_tried = #KEYS == 4
if quick_tried then
  local call, pcall, verb = redis.call, redis.pcall, ARGV[6]
  if verb == 'acquire' then
    local set = call('EXISTS', KEYS[2], KEYS[4]) == 0 and pcall('SET', KEYS[1], ARGV[7], 'PX', ARGV[3], 'NX')
    if set and set.ok then return now end
  elseif verb ~= 'bypass' and call('EXISTS', KEYS[3], KEYS[4]) == 0 and pcall('GET', KEYS[1]) == ARGV[7] then
    local ends = verb == 'release' or verb == 'complete'
    if verb == 'complete' and ARGV[8] ~= '0 0' then -- as `enter` in lib/answer
      local answer = string.format('%d ', now) .. ARGV[8] .. ' ' .. ARGV[5] .. ' ' .. ARGV[10]
      ends = not pcall('SET', KEYS[2], answer, 'PX', ARGV[9]).err
    end
    if ends then
      call('DEL', KEYS[1])
      return now
    end
  end
end
