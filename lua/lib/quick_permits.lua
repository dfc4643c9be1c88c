-- quick_permits: see lib/quick_mutex. The usual form is a key of permits that has room, where each permit weighs 1.
-- Expired holders count here. The script removes them.
local reply, filled, arg, key = nil, 1, 5, 1
do
  local call, pcall, match, runs = redis.call, redis.pcall, string.match, #KEYS / 4
  local waiters
  if runs == 1 then
    waiters = call('EXISTS', KEYS[4])
  else
    local beats = {}
    reply = {now}
    for i = 1, runs do beats[i] = KEYS[4 * i] end
    waiters = call('EXISTS', unpack(beats))
  end
  local expiry, longest = now + ARGV[2], 2 * 24 * 3600 * 1000
  local score, holders, held
  for _ = 1, waiters == 0 and runs or 0 do
    local verb, token, ends = ARGV[arg], ARGV[arg + 1], 0
    local limit = tonumber(match(token, '^[^/]+/1/(%d+)%f[/%z]', 18) or '')
    if holders ~= KEYS[key] then holders, held = KEYS[key], nil end
    if limit and verb == 'release' then
      local lasts = pcall('ZSCORE', holders, token)
      if type(lasts) ~= 'string' or tonumber(lasts) < now + 1 then break end
      call('ZREM', holders, token)
      held = held and held - 1
    elseif limit and verb == 'acquire' then
      local known = held
      held = held or pcall('ZCARD', holders)
      local fits = type(held) == 'number' and held < limit
        and (known or held == 0 or not call('ZSCORE', holders, 'excess'))
      -- A token that is a holder already, and a server that refuses to write, are left to the script.
      score = score or string.format('%d', expiry)
      if not fits or pcall('ZADD', holders, 'NX', score, token) ~= 1 then break end
      -- As `hold` in lib/permits.
      if held == 0 or not known and call('PTTL', holders) < 0.75 * longest then
        call('PEXPIRE', holders, longest)
      end
      held, ends = held + 1, expiry
    else
      break
    end
    if reply then
      reply[filled + 1], reply[filled + 2], reply[filled + 3] = 1, ends, 0
      reply[filled + 4], reply[filled + 5] = 0, 0
      filled = filled + 5
    end
    arg, key = arg + (verb == 'acquire' and 3 or 2), key + 4
  end
  if key > #KEYS then return now end
  reply = reply or {now}
end
