-- quick_rw_lock: lease/acquire_release for one run of a reader-writer lock that nobody waits for, if it is free or held by
-- readers of the same group; see lib/quick_mutex. Joined before lib/lease.
if #KEYS == 5 and redis.call('EXISTS', KEYS[4], KEYS[5]) == 0 then
  local holders, verb, token = KEYS[1], ARGV[8], ARGV[9]
  local own = redis.pcall('ZSCORE', holders, token)
  if verb == 'release' and type(own) == 'string' and tonumber(own) > now then
    redis.call('ZREM', holders, token)
    return {now, 1, 0, 0, 0, 0}
  elseif verb == 'acquire' and own == false and not string.find(token, '~', 17, true) then
    local mode = string.match(token, '^[^/]*/(.*)$')
    local writes = string.find(mode or '', '^w%d+$')
    local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
    local fits = mode and not first[1]
      or mode and not writes and tonumber(first[2]) > now and string.match(first[1], '^[^/]*/(.*)$') == mode
    local mark = fits and redis.pcall('GET', KEYS[2])
    local fence = mark == false and '0' or type(mark) == 'string' and string.match(mark, '^(%d+) 0$')
    fence = fits and tonumber(fence or '')
    if fence and fence < now then
      local expiry = now + ARGV[5]
      redis.call('ZADD', holders, string.format('%d', expiry), token)
      redis.call('PEXPIRE', holders, 2 * 24 * 3600 * 1000)
      if writes then
        fence = now
        redis.call('SET', KEYS[2], string.format('%d 0', now), 'PX', 8 * 24 * 3600 * 1000)
      end
      return {now, 1, expiry, fence, 0, 0}
    end
  end
end
