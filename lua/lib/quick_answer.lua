-- quick_answer: lease/acquire_release for one run of a flight that nobody waits for, if no answer is kept; see
-- lib/quick_mutex. Joined before lib/lease.
if #KEYS == 4 and redis.call('EXISTS', KEYS[3], KEYS[4]) == 0 then
  local lock, verb, token = KEYS[1], ARGV[9], ARGV[10]
  if verb == 'acquire' and not string.find(token, ':', 17, true) then
    local px = string.format('%d', math.ceil(ARGV[5] / 1000))
    local set = redis.call('EXISTS', KEYS[2]) == 0 and redis.pcall('SET', lock, token, 'PX', px, 'NX')
    if set and set.ok then return {now, 1, now + ARGV[5], now, 0, 0, 0} end
  elseif (verb == 'release' or verb == 'complete') and redis.pcall('GET', lock) == token then
    if verb == 'complete' and ARGV[12] ~= '0' then -- as `enter` in lib/answer
      local answer = string.format('%d ', now) .. table.concat({ARGV[11], ARGV[12], ARGV[8], ARGV[13]}, ' ')
      redis.call('SET', KEYS[2], answer, 'PX', string.format('%d', math.ceil(math.max(ARGV[12], 1000000) / 1000)))
    end
    redis.call('DEL', lock)
    return {now, 1, 0, 0, 0, 0, 0}
  end
end
