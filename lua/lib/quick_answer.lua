-- quick_answer: see lib/quick_mutex. The usual form is a flight without an answer, or one whose leader publishes or
-- releases.
local reply, filled, arg, key = {now}, 1, 9, 1
do
  local call, pcall, runs = redis.call, redis.pcall, #KEYS / 4
  local holders, freed, px
  if runs == 1 then
    holders = call('EXISTS', KEYS[3], KEYS[4]) == 0 and call('MGET', KEYS[1])
  else
    local waits, locks = {}, {}
    freed = {}
    for i = 1, runs do waits[2 * i - 1], waits[2 * i], locks[i] = KEYS[4 * i - 1], KEYS[4 * i], KEYS[4 * i - 3] end
    holders = call('EXISTS', unpack(waits)) == 0 and call('MGET', unpack(locks))
  end
  local expiry = now + ARGV[5]
  for i = 1, holders and runs or 0 do
    local lock, verb, token, ends, fence, takes = KEYS[key], ARGV[arg], ARGV[arg + 1], 0, 0, 5
    if lock == KEYS[key - 4] then break end
    if verb == 'acquire' and not string.find(token, ':', 17, true) then
      if holders[i] or call('EXISTS', KEYS[key + 1]) == 1 then break end
      px = px or string.format('%d', math.ceil(ARGV[5] / 1000))
      local set = pcall('SET', lock, token, 'PX', px, 'NX')
      if not set or not set.ok then break end
      ends, fence = expiry, now
    elseif verb == 'complete' and holders[i] == token then
      if ARGV[arg + 3] ~= '0' then -- as `enter` in lib/answer
        local times = string.format('%d ', now) .. ARGV[arg + 2] .. ' ' .. ARGV[arg + 3] .. ' '
        local answer = times .. ARGV[8] .. ' ' .. ARGV[arg + 4]
        local ttl = string.format('%d', math.ceil(math.max(ARGV[arg + 3], 1000000) / 1000))
        if pcall('SET', KEYS[key + 1], answer, 'PX', ttl).err then break end
      end
    elseif verb == 'release' and holders[i] == token then
      takes = 2
    else
      break
    end
    if verb ~= 'acquire' then
      if freed then freed[#freed + 1] = lock else call('DEL', lock) end
    end
    if runs == 1 then return {now, 1, ends, fence, 0, 0, 0} end
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = 1, ends, fence
    reply[filled + 4], reply[filled + 5], reply[filled + 6] = 0, 0, 0
    filled, arg, key = filled + 6, arg + takes, key + 4
  end
  if freed and freed[1] then call('DEL', unpack(freed)) end
  if key > #KEYS then return reply end
end
