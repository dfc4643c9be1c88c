-- quick_answer: see lib/quick_mutex. The usual form is a flight without an answer, or one whose leader publishes or
-- releases.
local reply, n, at, key = {now}, 1, 9, 1
do
  local call, pcall, waits, locks, freed = redis.call, redis.pcall, {}, {}, {}
  for i = 1, #KEYS / 4 do
    waits[2 * i - 1], waits[2 * i], locks[i] = KEYS[4 * i - 1], KEYS[4 * i], KEYS[4 * i - 3]
  end
  local holders = call('EXISTS', unpack(waits)) == 0 and call('MGET', unpack(locks)) or {}
  local expiry, px = now + ARGV[5], string.format('%d', math.ceil(ARGV[5] / 1000))
  for i = 1, #holders do
    local lock, verb, token, ends, fence, takes = locks[i], ARGV[at], ARGV[at + 1], 0, 0, 5
    if lock == locks[i - 1] then break end
    if verb == 'acquire' and not string.find(token, ':', 17, true) then
      if holders[i] or call('EXISTS', KEYS[key + 1]) == 1 then break end
      local set = pcall('SET', lock, token, 'PX', px, 'NX')
      if not set or not set.ok then break end
      ends, fence = expiry, now
    elseif verb == 'complete' and holders[i] == token then
      if ARGV[at + 3] ~= '0' then -- as `enter` in lib/answer
        local answer = table.concat({string.format('%d', now), ARGV[at + 2], ARGV[at + 3], ARGV[8], ARGV[at + 4]}, ' ')
        local ttl = string.format('%d', math.ceil(math.max(ARGV[at + 3], 1000000) / 1000))
        if pcall('SET', KEYS[key + 1], answer, 'PX', ttl).err then break end
      end
      freed[#freed + 1] = lock
    elseif verb == 'release' and holders[i] == token then
      freed[#freed + 1], takes = lock, 2
    else
      break
    end
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5], reply[n + 6] = 1, ends, fence, 0, 0, 0
    n, at, key = n + 6, at + takes, key + 4
  end
  if freed[1] then call('DEL', unpack(freed)) end
  if key > #KEYS then return reply end
end
