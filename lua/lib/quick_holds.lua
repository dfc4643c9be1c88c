-- quick_holds: the step on one hold; and token_bucket/hold for buckets whose states are bare (see lib/bare) apart from
-- their holds, or missing. If another bucket or a hold that has ended is among them, it writes nothing, and the script
-- goes on. Joined before lib/holds.

-- Splits the records of a key with several steps: into a list in their order, where those that were removed are empty, and
-- their positions by id.
local function split(h)
  h.list, h.at = {}, {}
  for from = 1, #h.tail, 29 do
    local n = #h.list + 1
    h.list[n], h.at[string.sub(h.tail, from, from + 15)] = string.sub(h.tail, from, from + 28), n
  end
end

-- Returns the position of a hold, and its record.
local function find(h, id)
  if h.list then return h.at[id], h.list[h.at[id]] end
  local at = string.find(h.tail, id, 1, true)
  while at and at % 29 ~= 1 do at = string.find(h.tail, id, at + 1, true) end
  return at, at and string.sub(h.tail, at, at + 28)
end

-- Replaces the record at a position, removes it ('') or, without a position, adds it.
local function put(h, at, id, record)
  if h.list then
    at = at or #h.list + 1
    h.list[at], h.at[id] = record, record ~= '' and at or nil
  elseif at then
    h.tail = string.sub(h.tail, 1, at - 1) .. record .. string.sub(h.tail, at + 29)
  else
    h.tail = h.tail .. record
  end
end

-- A step on the holds `h` of a bucket, of which `free` tokens are available besides them. `text` is an argument of the
-- script. Returns the outcome, the amount of the hold, the tokens to charge, and whether anything changed.
local function hold_step(h, free, text)
  local verb, on_end, id, amount, ttl, late = struct.unpack('>BBc16I4I8I4', text)
  local at, found = find(h, id)
  local captured, has, ends = 0, 0, 0
  if at then captured, has, ends = struct.unpack('>BI4I8', found, 17) end
  h.count = h.count or #h.tail / 29
  if verb == 2 then
    if not at then return 2, 0, late, late > 0 end
    put(h, at, id, '')
    h.count, h.held, h.captures = h.count - 1, h.held - has, h.captures - captured * has
    return 1, has, amount, true
  end
  local ending = now + ttl
  if at then
    if amount > has and amount - has > free then return 0, has, 0, false end
    amount, ending, on_end = math.max(amount, has), math.max(ending, ends), captured
    if amount == has and ending == ends then return 1, amount, 0, false end
  elseif verb == 1 then
    return 2, 0, 0, false
  elseif amount > free then
    return 0, 0, 0, false
  elseif h.count >= 1024 then
    return 3, 0, 0, false
  end
  h.next = h.count == 0 and ending or math.min(h.next, ending)
  h.last = math.max(h.last, ending)
  h.held, h.captures = h.held + amount - has, h.captures + on_end * (amount - has)
  put(h, at, id, struct.pack('>c16BI4I8', id, on_end, amount, ending))
  h.count = at and h.count or h.count + 1
  return 1, amount, 0, true
end

local function quick_holds()
  local limit, longest, match, format = 9007199254740992, 2 ^ 50, string.match, string.format
  local num, parts = tonumber(ARGV[3]), tonumber(ARGV[4])
  local full, quota = tonumber(ARGV[2]) * num, ARGV[3] .. ' ' .. ARGV[4] .. ' ' .. ARGV[2]
  local held_form = '^(%d+) (%d+) ' .. quota .. ' (%d+)|(%d+) (%d+) (%d+) (%d+)|()'
  if full >= limit then return nil end
  local raw
  if #KEYS == 1 then raw = {redis.pcall('GET', KEYS[1])} else raw = redis.call('MGET', unpack(KEYS)) end
  local reply, writes, h, ahead, changed = {now}, {}, nil, nil, false
  for i = 1, #KEYS do
    local key = KEYS[i]
    if key ~= KEYS[i - 1] then
      -- MGET finds nothing in a key of another type; GET fails on it.
      local stored = raw[i] or #KEYS > 1 and redis.pcall('GET', key)
      ahead, changed, h = 0, false, {held = 0, captures = 0, next = 0, last = 0, tail = '', whole = 0, part = 0}
      if stored then
        if type(stored) ~= 'string' then return nil end
        local whole, part, seen, held, captures, next, last, from = match(stored, held_form)
        if whole then
          h.held, h.captures, h.next, h.last = tonumber(held), tonumber(captures), tonumber(next), tonumber(last)
          h.tail = string.sub(stored, from)
          local count = #h.tail / 29
          if count % 1 ~= 0 or count < 1 or count > 1024 or h.held < count or h.held >= 2 ^ 32 or h.captures > h.held
            or h.next > h.last or h.last >= limit or h.next <= now then return nil end
        else
          whole, part, seen = match(stored, '^(%d+) (%d+) ' .. quota .. '%f[%D] ?(%d*)$')
          if not whole then return nil end
        end
        whole, part, seen = tonumber(whole), tonumber(part), tonumber(seen)
        if whole >= limit or part >= parts then return nil end
        if whole >= now then ahead = (whole - now) * parts + part end
        -- Without holds, a full bucket is as an unused one.
        if ahead > 0 or h.tail ~= '' then h.whole, h.part = whole, part end
        if ahead >= limit or seen and seen > now or ahead > full and not seen then return nil end
      end
    end
    if key == KEYS[i + 1] and not h.list then split(h) end
    local free = math.floor((full - ahead) / num) - h.held
    local outcome, amount, tokens, changes = hold_step(h, free, ARGV[4 + i])
    if tokens > 0 then
      ahead = ahead + tokens * num
      -- More than that is owed in table form.
      if ahead >= limit or ahead / parts > longest then return nil end
    end
    changed = changed or changes
    reply[i + 1] = {outcome, amount, ahead}
    if h.count > 0 then reply[i + 1] = {outcome, amount, ahead, h.held, h.next} end
    if changed and key ~= KEYS[i + 1] then
      h.key, h.ahead, h.tail = key, ahead, h.list and table.concat(h.list) or h.tail
      writes[#writes + 1] = h
    end
  end
  for _, state in ipairs(writes) do
    local saved
    ahead = state.ahead
    local part = ahead % parts
    local whole = now + (ahead - part) / parts
    if ahead == 0 then whole, part = state.whole, state.part end
    local idle, value = part > 0 and whole + 1 or whole, format('%d %d ', whole, part) .. quota
    if state.tail ~= '' then
      value = format('%s %d|%d %d %d %d|', value, now, state.held, state.captures, state.next, state.last) .. state.tail
      idle = math.max(idle, state.last)
      if state.captures * (num / parts) > longest then
        idle = idle + longest
      else
        idle = idle + math.ceil(state.captures * num / parts)
      end
    elseif ahead > full then
      value = format('%s %d', value, now)
    end
    if idle <= now then
      saved = redis.pcall('DEL', state.key)
    else
      local expiry = format('%d', (idle - idle % 1000000 + 1000000) / 1000) -- as `pxat` in lib/bucket
      saved = redis.pcall('SET', state.key, value, 'PXAT', expiry)
    end
    if type(saved) == 'table' and saved.err then return saved end
  end
  return reply
end

if ARGV[1] == '1' and ARGV[3] ~= '0' then
  local reply = quick_holds()
  if reply then return reply end
end
