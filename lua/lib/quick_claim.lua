-- quick_claim: see lib/quick_mutex. The usual form is a new item of a filter, or one whose holder confirms or releases.
-- Handled items, and the first item of a generation, are left to the script.
local reply, filled, arg, key = {now}, 1, 12, 1
do
  local call, pcall, format, concat = redis.call, redis.pcall, string.format, table.concat
  local runs = #KEYS / 6
  local holders, freed, px
  if runs == 1 then
    holders = call('EXISTS', KEYS[4]) == 0 and call('MGET', KEYS[1])
  else
    local beats, locks = {}, {}
    freed = {}
    for i = 1, runs do beats[i], locks[i] = KEYS[6 * i - 2], KEYS[6 * i - 5] end
    holders = call('EXISTS', unpack(beats)) == 0 and call('MGET', unpack(locks))
  end
  local expiry, hashes = now + ARGV[5], tonumber(ARGV[9])
  local forget, generation, want, filter, samples, words = tonumber(ARGV[10]), 0, ARGV[8], nil, {}, {}
  if holders and forget > 0 then
    generation = math.floor(now / forget)
    want = want .. format('%d', generation)
  end
  for i = 1, holders and runs or 0 do
    local lock, verb, token, ends, fence, takes = KEYS[key], ARGV[arg], ARGV[arg + 1], 0, 0, 2
    local bits, other = KEYS[key + 4 + generation % 2], forget > 0 and KEYS[key + 5 - generation % 2]
    local gets = verb == 'acquire'
    local usual = gets and not holders[i] and not string.find(token, ':', 17, true)
      or holders[i] == token and (verb == 'complete' or verb == 'release')
    if lock == KEYS[key - 6] or not usual then break end
    if verb ~= 'release' then
      if KEYS[key + 1] ~= filter and pcall('GET', KEYS[key + 1]) ~= want then break end
      if other and not gets and call('EXISTS', bits) == 0 then break end
      filter, takes = KEYS[key + 1], 2 + hashes
      local width = gets and 3 or 4
      for hash = 1, hashes do
        local word = width * hash - width
        words[word + 1], words[word + 2], words[word + 3] = gets and 'GET' or 'SET', 'u1', ARGV[arg + 1 + hash]
        if not gets then words[word + 4] = '1' end
      end
    end
    if gets then
      -- The bits as a text; empty for an error.
      local new = concat(pcall('BITFIELD_RO', bits, unpack(words, 1, 3 * hashes)))
      local old = other and concat(pcall('BITFIELD_RO', other, unpack(words, 1, 3 * hashes))) or '0'
      local is_new = string.find(new, '0', 1, true) and string.find(old, '0', 1, true)
      px = px or format('%d', math.ceil(ARGV[5] / 1000))
      local set = is_new and pcall('SET', lock, token, 'PX', px, 'NX')
      if not set or not set.ok then break end
      ends, fence = expiry, now
    elseif verb == 'complete' then
      if pcall('BITFIELD', bits, unpack(words, 1, 4 * hashes)).err then break end
      samples[bits] = samples[bits] or call('BITCOUNT', bits, 0, 4095)
      ends = samples[bits]
    end
    if not gets then
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
