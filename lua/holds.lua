-- holds: the holds of a bucket. They are stored after the numbers of the state and a bar. First a head of 34 bytes,
-- big-endian: when the state was written (8 bytes, µs), the number of holds (2 bytes), the held tokens, the held tokens
-- that are charged when their holds end (4 bytes each), a lower bound for the first end, and an upper bound for the
-- last end (8 bytes each, µs). Then records of 33 bytes. A record contains up to 32 equal holds: the upper bits of
-- their ids, their block (16 bytes), 1 if they are charged at their end, tokens of each (4 bytes), end (8 bytes, µs),
-- and a mask of the lower 5 bits of their ids (4 bytes). The records of a block are adjacent. The holds of a state, or
-- nil, are {count, held, captures, next, last, text, from} by name; the records are in `text`, from the position `from`
-- on.
local head, record, width, most = '>I8I2I4I4I8I8', '>c16BI4I8I4', 33, 1024
holds.record, holds.width, holds.most = record, width, most

-- The number of holds of a mask: counts its bits in pairs, in fours, in bytes, and adds the bytes.
function holds.in_mask(mask)
  local band, shift = bit.band, bit.rshift
  mask = mask - band(shift(mask, 1), 0x55555555)
  mask = band(mask, 0x33333333) + band(shift(mask, 2), 0x33333333)
  return band(mask + shift(mask, 4), 0x0f0f0f0f) % 255
end

-- Reads the text from `at` on. Returns the holds, and when they were written; nil if the text is invalid.
function holds.read(text, at)
  local size = (#text + 1 - at - 34) / width
  if size % 1 ~= 0 or size < 1 then return nil end
  local seen, count, held, captures, next, last, from = decode(head, text, at)
  if count < size or count > most or held < count or captures > held or next > last or last >= 2 * lift
    or seen >= 2 * lift then return nil end
  return {count = count, held = held, captures = captures, next = next, last = last, text = text, from = from}, seen
end

-- Writes what `read` reads.
function holds.text(h, now)
  return struct.pack(head, now, h.count, h.held, h.captures, h.next, h.last) .. sub(h.text, h.from)
end

function holds.none()
  return {count = 0, held = 0, captures = 0, next = 0, last = 0, text = '', from = 1}
end

-- Returns a copy of holds, which can change independently.
function holds.copy(h)
  return {
    count = h.count, held = h.held, captures = h.captures, next = h.next, last = h.last, text = h.text, from = h.from,
  }
end

-- Moves all times of holds that were written at `seen`, after the clock was set back. Returns whether the records are valid.
function holds.shift(h, now, seen)
  local function moved(at)
    return at > now and max(now, at - seen + now) or at
  end
  h.next, h.last = moved(h.next), moved(h.last)
  local records = {}
  for at = h.from, #h.text, width do
    local block, captured, tokens, ending, mask = decode(record, h.text, at)
    if ending >= 2 * lift then return false end
    records[#records + 1] = struct.pack(record, block, captured, tokens, moved(ending), mask)
  end
  h.text, h.from = table.concat(records), 1
  return true
end

-- Charges captured tokens: all of them, even if the bucket goes into debt. It charges less than 2^32 tokens at a time,
-- so that all products are exact.
function holds.capture(s, tokens)
  tokens = min(tokens, 2 ^ 37) -- of 32 holds
  while tokens > 0 do
    local some = min(tokens, 2 ^ 32 - 1)
    for q = 1, s.ours do level.overdraw(s.levels[q], s.now, s.now, some, s.now, true) end
    for q = s.ours + 1, #s.levels do level.charge_up_to_burst(s.levels[q], s.now, some, s.now) end
    tokens = tokens - some
  end
end

-- Charges a hold that ended by itself at the time `at`. A calendar quota is charged in the window in which the end is
-- detected.
local function settle(s, at, tokens)
  for _, l in ipairs(s.levels) do
    if tokens <= l.burst then
      level.overdraw(l, s.now, at, tokens, s.now, true)
    else
      level.charge_up_to_burst(l, at, tokens, s.now)
    end
  end
end

-- Ends the holds that are due, in the order of their ends. Returns whether the records are valid.
function holds.sweep(s)
  local stored, ended, left, all = s.holds.text, {}, {}, 0
  local h = {count = 0, held = 0, captures = 0, next = 2 * lift, last = 0, from = 1}
  for at = s.holds.from, #stored, width do
    local _, captured, tokens, ending, mask = decode(record, stored, at)
    if tokens < 1 or captured > 1 or ending >= 2 * lift or mask == 0 then return false end
    local some = holds.in_mask(mask)
    all = all + some
    if all > most then return false end
    if ending > s.now then
      h.count, h.held, h.captures = h.count + some, h.held + some * tokens, h.captures + some * captured * tokens
      h.next, h.last = min(h.next, ending), max(h.last, ending)
      left[#left + 1] = sub(stored, at, at + width - 1)
    elseif captured == 1 then
      ended[#ended + 1] = {ending, tokens, some}
    end
  end
  if h.held >= 2 ^ 32 then return false end
  table.sort(ended, function(one, other)
    return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2])
  end)
  for _, each in ipairs(ended) do
    for _ = 1, each[3] do settle(s, each[1], each[2]) end
  end
  h.text = table.concat(left)
  s.holds = h.count > 0 and h or nil
  return true
end
