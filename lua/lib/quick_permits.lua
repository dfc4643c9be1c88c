-- quick_permits: lease/acquire_release for one run of a key of permits that has room, where nobody waits, there are no
-- tombstones, and each permit weighs 1; see lib/quick_mutex. Expired holders count here. The script removes them.
-- Joined before lib/lease.
if #KEYS == 4 and redis.call('EXISTS', KEYS[4]) == 0 then
  local holders, token = KEYS[1], ARGV[9]
  local limit = string.match(token, '^[^/]+/1/(%d+)$', 18)
  if limit and ARGV[8] == 'release' then
    local expiry = redis.pcall('ZSCORE', holders, token)
    if type(expiry) == 'string' and tonumber(expiry) > now then
      redis.call('ZREM', holders, token)
      return {now, 1, 0, 0, 0, 0}
    end
  elseif limit and ARGV[8] == 'acquire' then
    local held, expiry = redis.pcall('ZCARD', holders), now + ARGV[5]
    local fits = type(held) == 'number' and held < tonumber(limit)
      and not (held > 0 and redis.call('ZSCORE', holders, 'excess'))
    -- A token that is a holder already, and a server that refuses to write, are left to the script.
    if fits and redis.pcall('ZADD', holders, 'NX', string.format('%d', expiry), token) == 1 then
      -- As `hold` in lib/permits.
      local longest = 2 * 24 * 3600 * 1000
      if held == 0 or redis.call('PTTL', holders) < 0.75 * longest then redis.call('PEXPIRE', holders, longest) end
      return {now, 1, expiry, 0, 0, 0}
    end
  end
end
