-- quick_rw_lock: see lib/quick_mutex. The usual form is a reader-writer lock that is free, or held by readers of the
-- same group.
local reply, filled, arg, key = nil, 1, 5, 1
do
  local call, pcall, match, runs = redis.call, redis.pcall, string.match, #KEYS / 4
  local waiters
  if runs == 1 then
    waiters = call('EXISTS', KEYS[3], KEYS[4])
  else
    local waits = {}
    for i = 1, runs do waits[2 * i - 1], waits[2 * i] = KEYS[4 * i - 1], KEYS[4 * i] end
    waiters = call('EXISTS', unpack(waits))
  end
  local expiry, score, is_usual = now + ARGV[2], nil, true
  for _ = 1, waiters == 0 and runs or 0 do
    local holders, verb, token, ends, fence = KEYS[key], ARGV[arg], ARGV[arg + 1], 0, 0
    local own = pcall('ZSCORE', holders, token)
    if verb == 'release' and type(own) == 'string' and tonumber(own) >= now + 1 then
      call('ZREM', holders, token)
    elseif verb == 'acquire' and own == false and not string.find(token, '~', 17, true) then
      local mode = match(token, '^[^/]*/(.*)$')
      local writes = string.find(mode or '', '^w%d+$')
      local first = call('ZRANGE', holders, 0, 0, 'WITHSCORES')
      local fits = mode and not first[1]
        or mode and not writes and tonumber(first[2]) >= now + 1 and match(first[1], '^[^/]*/(.*)$') == mode
      local mark = fits and pcall('GET', KEYS[key + 1])
      local last = mark == false and '0' or type(mark) == 'string' and match(mark, '^(%d+) 0$')
      fence = fits and tonumber(last or '')
      score = score or string.format('%d', expiry)
      if not fence or fence >= now or type(pcall('ZADD', holders, score, token)) ~= 'number' then break end
      call('PEXPIRE', holders, 2 * 24 * 3600 * 1000)
      if writes then
        fence = now
        call('SET', KEYS[key + 1], string.format('%d 0', now), 'PX', 8 * 24 * 3600 * 1000)
      end
      ends, is_usual = expiry, is_usual and fence == now
    else
      break
    end
    if runs > 1 or not is_usual then
      reply = reply or {now}
      reply[filled + 1], reply[filled + 2], reply[filled + 3] = 1, ends, fence
      reply[filled + 4], reply[filled + 5] = 0, 0
      filled = filled + 5
    end
    arg, key = arg + 2, key + 4
  end
  if key > #KEYS then return is_usual and now or reply end
  reply = reply or {now}
end
