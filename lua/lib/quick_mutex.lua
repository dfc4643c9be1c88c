-- quick_mutex: lease/acquire_release for one run of a mutex that has no waiters and no tombstones. Most calls of a process
-- with few callers are such, and creating the functions of the whole script takes longer than the work. Otherwise it
-- does nothing, and the script goes on. It leaves values and fence_ttls to the script. Joined before lib/lease.
if #KEYS == 4 and redis.call('EXISTS', KEYS[4]) == 0 then
  local lock, mark, token = KEYS[1], KEYS[2], ARGV[9]
  if ARGV[8] == 'release' then
    if redis.pcall('GET', lock) == token then
      redis.call('DEL', lock)
      return {now, 1, 0, 0, 0, 0}
    end
  elseif ARGV[8] == 'acquire' and not string.find(token, '[:~]', 17) then
    local last, day = redis.pcall('GET', mark), 24 * 3600 * 1000000
    local before = not last and 0 or type(last) == 'string' and tonumber(string.match(last, '^%d+ ?$') or '')
    local px = string.format('%d', math.ceil(ARGV[5] / 1000))
    -- A server that refuses to write is left to the script: if another holds, there is nothing to write.
    local set = before and before < 4503599627370496 and redis.pcall('SET', lock, token, 'PX', px, 'NX')
    if set and set.ok then
      -- As `hold` in lib/mutex.
      local fence, saved = math.max(now, before + 32)
      local digits = string.format('%d', fence) .. (fence > now and ' ' or '')
      if fence > now or not last or fence - fence % day > before or #last ~= #digits then
        saved = redis.pcall('SET', mark, digits, 'PX', 8 * 24 * 3600 * 1000)
      else
        saved = redis.pcall('SETRANGE', mark, '0', digits)
      end
      if type(saved) == 'table' and saved.err then
        redis.call('DEL', lock)
        return saved
      end
      return {now, 1, now + ARGV[5], fence, 0, 0}
    end
  end
end
