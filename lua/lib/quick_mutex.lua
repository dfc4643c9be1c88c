-- quick_mutex: serves the first runs of lease/acquire_release that are of the usual form, if no key of the call has
-- waiters or tombstones: a free mutex, or a release of its holder. Most calls are such, and creating the functions of
-- the whole script takes longer than the work. From the first other run on, the script goes on. So values, fence_ttls,
-- and what a server refuses to write are left to the script. Joined before lib/lease; each kind has a file like this.
-- reply, filled   the reply until now, and its last position; a lone run that went the usual way has none
-- arg, key        the positions of the next run in ARGV and KEYS
local reply, filled, arg, key = nil, 1, 5, 1
do
  local call, pcall, runs = redis.call, redis.pcall, #KEYS / 4
  local values, freed
  if runs == 1 then
    values = ARGV[arg] == 'acquire' and call('EXISTS', KEYS[4]) == 0 -- lib/quick_unlock was there for a release
  else
    local beats, read = {}, {}
    freed = {}
    for i = 1, runs do
      beats[i], read[i] = KEYS[4 * i], KEYS[4 * i - (ARGV[3 + 2 * i] == 'acquire' and 2 or 3)]
    end
    values = call('EXISTS', unpack(beats)) == 0 and call('MGET', unpack(read))
  end
  local expiry, is_usual, digits, lock = now + ARGV[2], true, nil, nil
  for i = 1, values and runs or 0 do
    local verb, token, same, ends, fence = ARGV[arg], ARGV[arg + 1], lock == KEYS[key], 0, 0
    -- An error of GET is a table.
    local last
    if freed then last = values[i] else last = pcall('GET', KEYS[2]) end
    lock = KEYS[key]
    if verb == 'release' and last == token and not same then
      if KEYS[key + 4] ~= lock then freed[#freed + 1] = lock else call('DEL', lock) end
    elseif verb == 'acquire' and not string.find(token, '[:~]', 17) then
      -- As `hold` in lib/mutex.
      local before = tonumber(last or 0)
      if not before or before % 1 ~= 0 or before < 0 or before >= 4503599627370496 then break end
      digits = digits or string.format('%d', now)
      local set = pcall('SET', lock, token, 'PX', ARGV[3], 'NX')
      if not set or not set.ok then break end
      local text, saved = digits
      fence = now
      if before + 32 > now then
        fence = before + 32
        text = string.format('%d ', fence)
      end
      if fence > now or not last or now - now % 86400000000 > before or #last ~= #text then
        saved = pcall('SET', KEYS[key + 1], text, 'PX', 8 * 24 * 3600 * 1000, 'GET')
      else
        saved = pcall('SETRANGE', KEYS[key + 1], '0', digits)
      end
      if type(saved) == 'table' and saved.err then
        call('DEL', lock)
        break
      end
      ends, is_usual = expiry, is_usual and fence == now
    else
      break
    end
    if freed or not is_usual then
      reply = reply or {now}
      reply[filled + 1], reply[filled + 2], reply[filled + 3] = 1, ends, fence
      reply[filled + 4], reply[filled + 5] = 0, 0
      filled = filled + 5
    end
    arg, key = arg + 2, key + 4
  end
  if freed and freed[1] then call('DEL', unpack(freed)) end
  if key > #KEYS then return is_usual and now or reply end
  reply = reply or {now}
end
