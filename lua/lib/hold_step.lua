-- hold_step: the step on holds. Joined after lib/holds, which describes the records.
local band = bit.band

-- Takes the records of a block out of the text of a key: {charged at the end, tokens, end, mask} each. They stand from
-- `at` up to `to`.
local function open(h, block)
  local text, records = h.text, {block = block, at = 0, to = 0}
  local at = string.find(text, block, h.from, true)
  while at and (at - h.from) % 33 ~= 0 do at = string.find(text, block, at + 1, true) end
  records.at = at or #text + 1
  while at and string.sub(text, at, at + 15) == block do
    records[#records + 1] = {struct.unpack('>BI4I8I4', text, at + 16)}
    at = at + 33
  end
  records.to = at or #text + 1
  h.open = h.open or {}
  h.open[block], h.open[#h.open + 1] = records, records
  return records
end

-- Puts all open blocks back.
local function close(h)
  local texts, from = {}, h.from
  table.sort(h.open, function(one, other) return one.at < other.at end)
  for _, records in ipairs(h.open) do
    texts[#texts + 1] = string.sub(h.text, from, records.at - 1)
    for _, r in ipairs(records) do
      texts[#texts + 1] = struct.pack('>c16BI4I8I4', records.block, r[1], r[2], r[3], r[4])
    end
    from = records.to
  end
  texts[#texts + 1] = string.sub(h.text, from)
  h.text, h.from, h.open = table.concat(texts), 1, nil
end

-- A step on `holds` holds of a block, those of a mask. Nil if they may have different answers.
local function step_on(h, free, verb, on_end, records, mask, holds, amount, other)
  local at, found
  for i = 1, #records do
    local both = band(records[i][4], mask)
    if both ~= 0 then
      if both % 4294967296 ~= mask then return nil end
      at, found = i, records[i]
      break
    end
  end
  local captured, has, ends = 0, 0, 0
  if found then captured, has, ends = found[1], found[2], found[3] end
  local ending, more = now + other, holds * (amount - has)
  if verb == 2 then
    if not found then return 2, 0, other, other > 0 end
  elseif found then
    if more > 0 and more > free then
      if holds > 1 then return nil end
      return 0, has, 0, false
    end
    if amount <= has and ending <= ends then return 1, has, 0, false end
    if amount < has then amount, more = has, 0 end
    on_end, ending = captured, math.max(ending, ends)
  elseif verb == 1 then
    return 2, 0, 0, false
  elseif amount > free then
    return 0, 0, 0, false
  elseif more > free or h.count + holds > 1024 then
    if holds > 1 then return nil end
    return 3, 0, 0, false
  end
  if found then
    found[4] = found[4] - mask
    if found[4] == 0 then table.remove(records, at) end
  end
  if verb == 2 then
    h.count, h.held, h.captures = h.count - holds, h.held - holds * has, h.captures - captured * holds * has
    if h.count == 0 then h.last = 0 end
    return 1, has, amount, true
  end
  h.next = h.count == 0 and ending or math.min(h.next, ending)
  h.last = math.max(h.last, ending)
  h.count = found and h.count or h.count + holds
  h.held, h.captures = h.held + more, h.captures + on_end * more
  local r = records[#records]
  if r and r[1] == on_end and r[2] == amount and r[3] == ending then
    r[4] = r[4] + mask
  else
    records[#records + 1] = {on_end, amount, ending, mask}
  end
  return 1, amount, 0, true
end

-- Captures holds that stand in several records, if all are there and have the same amount. Returns that, or nil.
local function capture_all(h, records, mask)
  local left, has = mask, nil
  for _, r in ipairs(records) do
    local both = band(r[4], mask) % 4294967296
    if both > 0 then
      if has and r[2] ~= has then return nil end
      left, has = left - both, r[2]
    end
  end
  if left > 0 then return nil end
  local holds_in = on_holds().holds_in
  for at = #records, 1, -1 do
    local both = band(records[at][4], mask) % 4294967296
    if both > 0 then step_on(h, 0, 2, 0, records, both, holds_in(both), 0, 0) end
  end
  return has
end

-- A step on the holds `h` of a bucket (see lib/holds; without `text` if there are none), of which `free` tokens are
-- available besides them. `text` is an argument of token_bucket/hold. Returns the outcome, the amount of each hold, the
-- tokens to charge, and whether anything changed. If the holds may have different answers, the outcome is a text of 5
-- bytes per hold of the block: outcome, amount (4 bytes). `more`: the next step is on the same key, so nothing is put
-- back.
local function hold_step(h, free, text, more)
  if not h.text then h.count, h.text, h.from = 0, '', 1 end
  local verb, on_end, block, mask, holds, amount, other, from = struct.unpack('>BBc16I4BI8I8', text)
  local records = h.open and h.open[block] or open(h, block)
  local outcome, has, tokens, changed = step_on(h, free, verb, on_end, records, mask, holds, amount, other)
  local all = not outcome and verb == 2 and capture_all(h, records, mask)
  if all then
    outcome, has, tokens, changed = 1, all, amount, true
  elseif not outcome then
    -- One after the other.
    local answers = {}
    tokens, changed = 0, false
    for n = 0, 31 do
      local one, answer = 2 ^ n, 0
      has = 0
      if band(mask, one) ~= 0 then
        if verb == 2 then amount, other, from = struct.unpack('>I4I4', text, from) end
        local held, charged, changes = h.held
        answer, has, charged, changes = step_on(h, free, verb, on_end, records, one, 1, amount, other)
        free, tokens, changed = free + held - h.held, tokens + charged, changed or changes
      end
      answers[n + 1] = struct.pack('>BI4', answer, has)
    end
    outcome, has = table.concat(answers), 0
  end
  if not more then close(h) end
  return outcome, has, tokens, changed
end
