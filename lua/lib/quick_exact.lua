-- quick_exact: see lib/quick_mutex. The usual form is a new item of the kind lib/exact, or one whose holder confirms or
-- releases. Handled items, and the first item of a slice, are left to the script.
local reply, filled, arg, key = {now}, 1, 9, 1
do
  local call, pcall, runs = redis.call, redis.pcall, #KEYS / 6
  local holders, freed, px
  if runs == 1 then
    holders = call('EXISTS', KEYS[4]) == 0 and call('MGET', KEYS[1])
  else
    local beats, locks = {}, {}
    freed = {}
    for i = 1, runs do beats[i], locks[i] = KEYS[6 * i - 2], KEYS[6 * i - 5] end
    holders = call('EXISTS', unpack(beats)) == 0 and call('MGET', unpack(locks))
  end
  local expiry = now + ARGV[5]
  for i = 1, holders and runs or 0 do
    local lock, verb, token, digest, ends, fence, takes = KEYS[key], ARGV[arg], ARGV[arg + 1], ARGV[arg + 3], 0, 0, 4
    if lock == KEYS[key - 6] then break end
    if verb == 'acquire' and not holders[i] and not string.find(token, ':', 17, true) then
      local seen = pcall('HEXISTS', KEYS[key + 1], digest)
      seen = seen == 0 and pcall('HEXISTS', KEYS[key + 4], digest)
      seen = seen == 0 and pcall('HEXISTS', KEYS[key + 5], digest)
      px = px or string.format('%d', math.ceil(ARGV[5] / 1000))
      local set = seen == 0 and pcall('SET', lock, token, 'PX', px, 'NX')
      if not set or not set.ok then break end
      ends, fence = expiry, now
    elseif verb == 'complete' and holders[i] == token then
      local slice = math.floor((now + ARGV[arg + 2]) / ARGV[8])
      local hash = slice % 3 == 0 and KEYS[key + 1] or slice % 3 == 1 and KEYS[key + 4] or KEYS[key + 5]
      if pcall('HGET', hash, 's') ~= string.format('%d', slice) or pcall('HSET', hash, digest, '') ~= 1 then break end
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
    filled, arg, key = filled + 6, arg + takes, key + 6
  end
  if freed and freed[1] then call('DEL', unpack(freed)) end
  if key > #KEYS then return reply end
end
