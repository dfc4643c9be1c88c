-- quick_exact: lease/acquire_release for one run of an item, of the kind lib/exact, that nobody waits for; see
-- lib/quick_mutex. It leaves handled items, and the first item of a slice, to the script. Joined before lib/lease.
if #KEYS == 6 and redis.call('EXISTS', KEYS[4]) == 0 then
  local lock, verb, token, digest = KEYS[1], ARGV[9], ARGV[10], ARGV[12]
  if verb == 'acquire' and not string.find(token, ':', 17, true) then
    local seen = redis.pcall('HEXISTS', KEYS[2], digest)
    seen = seen == 0 and redis.pcall('HEXISTS', KEYS[5], digest)
    seen = seen == 0 and redis.pcall('HEXISTS', KEYS[6], digest)
    local px = string.format('%d', math.ceil(ARGV[5] / 1000))
    local set = seen == 0 and redis.pcall('SET', lock, token, 'PX', px, 'NX')
    if set and set.ok then return {now, 1, now + ARGV[5], now, 0, 0, 0} end
  elseif (verb == 'release' or verb == 'complete') and redis.pcall('GET', lock) == token then
    local entered = verb == 'release'
    if verb == 'complete' then
      local slice = math.floor((now + ARGV[11]) / ARGV[8])
      local hash = slice % 3 == 0 and KEYS[2] or slice % 3 == 1 and KEYS[5] or KEYS[6]
      entered = redis.pcall('HGET', hash, 's') == string.format('%d', slice)
      if entered then redis.call('HSET', hash, digest, '') end
    end
    if entered then
      redis.call('DEL', lock)
      return {now, 1, 0, 0, 0, 0, 0}
    end
  end
end
