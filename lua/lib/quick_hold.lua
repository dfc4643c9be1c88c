-- quick_hold: token_bucket/hold for one hold of one bucket that is bare (see lib/bare) apart from its holds, or missing:
-- its authorization or its capture, if it is not the second one. Otherwise it writes nothing, and the script goes on.
-- Joined before lib/quick_holds; lib/holds describes the records.
local struct, string, exact = struct, string, 9007199254740992 -- smaller integers are exact
-- den-ths of a µs
local quota, per_token, per_micro, per_burst = ARGV[1], struct.unpack('>xddd', ARGV[2])
per_burst = per_burst * per_token

-- Reads a state: the time from now to the TAT in den-ths of a µs, the stored numbers if they need not be written anew,
-- the position of the records, and the numbers of the holds. Nil if it is another state, or a hold has ended.
local function read_held(stored)
  if not stored then return 0, '0 0 ' .. quota, 1, 0, 0, 0, 0, 0 end
  if type(stored) ~= 'string' then return nil end
  local ahead, seen, count, held, captures, next, last = 0, nil, 0, 0, 0, 0, 0
  local whole, part, of, from = string.match(stored, '^(%d+) (%d+) ([%d ]+)()')
  if not whole then return nil end
  local numbers = of == quota and stored or nil
  if from <= #stored then
    local size = (#stored - from - 34) / 33
    if not numbers or size % 1 ~= 0 or size < 1 or string.byte(stored, from) ~= 124 then return nil end
    numbers = string.sub(stored, 1, from - 1)
    seen, count, held, captures, next, last, from = struct.unpack('>I8I2I4I4I8I8', stored, from + 1)
    if count < size or count > 1024 or held < count or captures > held or next > last or last >= exact
      or next <= now then return nil end
  elseif not numbers then
    seen = tonumber(string.match(of, '^' .. quota .. ' (%d+)$'))
    if not seen then return nil end
  end
  whole, part = tonumber(whole), tonumber(part)
  if whole >= now then ahead = (whole - now) * per_micro + part end
  if whole >= exact or part >= per_micro or ahead >= exact or seen and seen > now
    or ahead > per_burst and not seen then return nil end
  -- Without holds, a full bucket is as an unused one.
  if ahead == 0 and count == 0 then numbers = '0 0 ' .. quota end
  return ahead, numbers, from, count, held, captures, next, last
end

-- Writes a state, and returns the reply of Redis. `numbers` is nil or as `read_held` returns it. `frees`: as `set` in
-- lib/bucket.
local function write_held(frees, key, ahead, numbers, count, held, captures, next, last, before, record, behind)
  local part = ahead % per_micro
  local idle = now + (ahead - part) / per_micro
  local value = numbers or string.format('%d %d ', idle, part) .. quota
  if part > 0 then idle = idle + 1 end
  if count > 0 then
    local head = struct.pack('>I8I2I4I4I8I8', now, count, held, captures, next, last)
    value = value .. '|' .. head .. before .. record .. behind
    if last > idle then idle = last end
    local longest, charged = 2 ^ 50, captures * (per_token / per_micro)
    idle = idle + (charged > longest and longest or math.ceil(captures * per_token / per_micro))
  elseif ahead > per_burst then
    value = string.format('%s %d', value, now)
  end
  if idle <= now then return redis.pcall('DEL', key) end
  local expiry = string.format('%d', (idle - idle % 1000000 + 1000000) / 1000) -- as `pxat` in lib/bucket
  while true do
    local saved = redis.pcall('SET', key, value, 'PXAT', expiry)
    local is_full = type(saved) == 'table' and saved.err and string.find(saved.err, 'OOM', 1, true)
    if not (frees and is_full) then return saved end
    redis.pcall('DEL', key)
    frees = false
  end
end

local is_bare = #ARGV[2] == 25 and per_token > 0 and per_burst < exact -- one quota, which refills
if is_bare and not KEYS[2] then
  local before, record, behind, outcome, has = '', '', '', nil, nil
  local stored = redis.pcall('GET', KEYS[1])
  local ahead, numbers, from, count, held, captures, next, last = read_held(stored)
  local verb, on_end, id, mask, holds, amount, ttl = struct.unpack('>BBc16I4BI8I8', ARGV[3])
  stored = stored or ''
  -- Looks for its record among those of its block. A new one is put before them.
  local at, found = ahead and string.find(stored, id, from, true), nil
  local place = at or #stored + 1
  while at and string.sub(stored, at, at + 15) == id do
    found = struct.unpack('>I4', stored, at + 29)
    if bit.band(found, mask) ~= 0 then break end
    at, found = at + 33, nil
  end
  if not ahead or holds > 1 or (place - from) % 33 ~= 0 then
    outcome = nil
  elseif verb == 0 and not found then
    if amount > math.floor((per_burst - ahead) / per_token) - held then
      outcome, has = 0, 0
    elseif count < 1024 then
      local ending = now + ttl
      outcome, has = 1, amount
      before, behind = string.sub(stored, from, place - 1), string.sub(stored, place)
      record = struct.pack('>c16BI4I8I4', id, on_end, amount, ending, mask)
      if count == 0 or ending < next then next = ending end
      if ending > last then last = ending end
      count, held, captures = count + 1, held + amount, captures + on_end * amount
    end
  elseif verb == 2 and found then
    local captured, tokens = struct.unpack('>BI4', stored, at + 16)
    local after = ahead + amount * per_token
    if after < exact and after / per_micro <= 2 ^ 50 then
      outcome, has = 1, tokens
      if found ~= mask then record = string.sub(stored, at, at + 28) .. struct.pack('>I4', found - mask) end
      before, behind = string.sub(stored, from, at - 1), string.sub(stored, at + 33)
      if amount > 0 then ahead, numbers = after, nil end
      count, held, captures = count - 1, held - has, captures - captured * has
    end
  end
  if outcome then
    local saved = outcome == 1
      and write_held(verb == 2, KEYS[1], ahead, numbers, count, held, captures, next, last, before, record, behind)
    if type(saved) == 'table' and saved.err then return saved end
    if count > 0 then return {now, {outcome, has, ahead, held, next}} end
    return {now, {outcome, has, ahead}}
  end
end
