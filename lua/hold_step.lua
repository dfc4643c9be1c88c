-- hold_step: a step on holds, see holds.
local authorize, capture = 0, 2 -- and 1: extend
local refused, done, gone, too_many = 0, 1, 2, 3
local record, width = holds.record, holds.width

-- Returns the records of a block, {charged at the end, tokens, end, mask} each; the position of the first one in the
-- text, and the position after the last one.
local function read(h, block)
  local text, records = h.text, {}
  local at = find(text, block, h.from, true)
  while at and (at - h.from) % width ~= 0 do at = find(text, block, at + 1, true) end
  at = at or #text + 1
  local behind = at
  while sub(text, behind, behind + 15) == block do
    records[#records + 1] = {decode('>BI4I8I4', text, behind + 16)}
    behind = behind + width
  end
  return records, at, behind
end

-- Writes the records of a block in place of the earlier ones.
local function write(h, block, records, at, behind)
  local text = sub(h.text, h.from, at - 1)
  for i = 1, #records do
    local r = records[i]
    text = text .. struct.pack(record, block, r[1], r[2], r[3], r[4])
  end
  h.text, h.from = text .. sub(h.text, behind), 1
end

-- Returns the position of the record that has holds of a mask. The second value is whether that record lacks holds of
-- the mask.
local function seek(records, mask)
  for i = 1, #records do
    local both = bit.band(records[i][4], mask)
    if both ~= 0 then return i, both % 4294967296 ~= mask end
  end
end

-- Removes holds of a mask from the record at `at`.
local function take_out(records, at, mask)
  records[at][4] = records[at][4] - mask
  if records[at][4] == 0 then table.remove(records, at) end
end

-- Captures `some` holds of the record at `at`. Returns the number of tokens of each of them.
local function remove(h, records, at, mask, some)
  local captured, has = records[at][1], records[at][2]
  take_out(records, at, mask)
  h.count, h.held, h.captures = h.count - some, h.held - some * has, h.captures - captured * some * has
  if h.count == 0 then h.last = 0 end
  return has
end

-- Adds `some` holds to a record. `more`: the number of additional tokens.
local function put(h, records, on_end, amount, ending, mask, some, more)
  h.next = h.count == 0 and ending or min(h.next, ending)
  h.last, h.count = max(h.last, ending), h.count + some
  h.held, h.captures = h.held + more, h.captures + on_end * more
  local r = records[#records]
  if r and r[1] == on_end and r[2] == amount and r[3] == ending then
    r[4] = r[4] + mask
  else
    records[#records + 1] = {on_end, amount, ending, mask}
  end
end

-- Runs a step on `some` holds of a block, which are in a mask. Returns the outcome, the amount of each hold, the tokens
-- to charge, and whether anything changed. Returns nil if the results may differ between the holds.
local function step_on(h, now, free, verb, on_end, records, mask, some, amount, other)
  local at, are_split = seek(records, mask)
  if are_split then return nil end
  if verb == capture then
    if not at then return gone, 0, other, other > 0 end
    return done, remove(h, records, at, mask, some), amount, true
  end
  local found, ending = at and records[at], now + other
  local has = found and found[2] or 0
  local more = some * (amount - has)
  if found then
    if more > 0 and more > free then
      if some > 1 then return nil end
      return refused, has, 0, false
    end
    if amount <= has and ending <= found[3] then return done, has, 0, false end
  elseif verb ~= authorize then
    return gone, 0, 0, false
  elseif amount > free then
    return refused, 0, 0, false
  elseif more > free or h.count + some > holds.most then
    if some > 1 then return nil end
    return too_many, 0, 0, false
  end
  if found then
    take_out(records, at, mask)
    put(h, records, found[1], max(amount, has), max(ending, found[3]), mask, 0, max(more, 0))
  else
    put(h, records, on_end, amount, ending, mask, some, more)
  end
  return done, max(amount, has), 0, true
end

-- Captures holds from several records, if all exist and have the same amount. Returns that amount, or nil.
local function capture_all(h, records, mask)
  local left, has = mask, nil
  for _, r in ipairs(records) do
    local both = bit.band(r[4], mask) % 4294967296
    if both > 0 then
      if has and r[2] ~= has then return nil end
      left, has = left - both, r[2]
    end
  end
  if left > 0 then return nil end
  for at = #records, 1, -1 do
    local both = bit.band(records[at][4], mask) % 4294967296
    if both > 0 then remove(h, records, at, both, holds.in_mask(both)) end
  end
  return has
end

-- Runs a step on the holds of a mask one after the other. Captures have separate numbers in the text, from `from` on.
local function one_by_one(h, now, free, verb, on_end, records, mask, amount, other, text, from)
  local answers, tokens, has_changed = {}, 0, false
  for n = 0, 31 do
    local one, outcome, has = 2 ^ n, 0, 0
    if bit.band(mask, one) ~= 0 then
      if verb == capture then amount, other, from = decode('>I4I4', text, from) end
      local held = h.held
      local charged, changes
      outcome, has, charged, changes = step_on(h, now, free, verb, on_end, records, one, 1, amount, other)
      free, tokens, has_changed = free + held - h.held, tokens + charged, has_changed or changes
    end
    answers[n + 1] = struct.pack('>BI4', outcome, has)
  end
  return table.concat(answers), 0, tokens, has_changed
end

-- Returns whether a step authorizes holds.
function hold_step.authorizes(text)
  return string.byte(text) == authorize
end

-- Runs a step on up to 32 holds of a block, of a bucket that has `free` tokens besides its holds `h`. The text: step (1
-- byte; 0: authorize, 1: extend or renew, 2: capture or release), 1 if the holds are charged when they end by
-- themselves (1 byte), block (16 bytes), mask (4 bytes), number of holds (1 byte), tokens of each, or to charge for all
-- (8 bytes), ttl (µs), or tokens to charge if none of the holds to capture exists (8 bytes); for several captures also,
-- for each in the order of the mask, tokens to charge, and tokens to charge if the hold does not exist (4 bytes each).
-- Returns the outcome: 0 refused, 1 done, 2 there is no such hold, 3 the bucket has too many holds; the tokens of each
-- hold, before a capture or after another step; the tokens to charge; and whether anything changed. If the results may
-- differ between the holds, the outcome is a text of 5 bytes per hold of the block: outcome, amount (4 bytes).
function hold_step.run(h, now, free, text)
  local verb, on_end, block, mask, some, amount, other, from = decode('>BBc16I4BI8I8', text)
  local records, at, behind = read(h, block)
  local outcome, has, tokens, changes = step_on(h, now, free, verb, on_end, records, mask, some, amount, other)
  if not outcome then
    has = verb == capture and capture_all(h, records, mask)
    if has then
      outcome, tokens, changes = done, amount, true
    else
      outcome, has, tokens, changes = one_by_one(h, now, free, verb, on_end, records, mask, amount, other, text, from)
    end
  end
  if changes then write(h, block, records, at, behind) end
  return outcome, has, tokens, changes
end
