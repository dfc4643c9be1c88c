-- holds: what is held of a bucket. Joined before lib/hold_step and lib/bucket, which stores it behind the numbers of a
-- state and a bar: a head of 34 bytes, big-endian: when the state was written (8 bytes, µs), the number of holds (2 bytes),
-- the held tokens, those of them that are charged when their holds end (4 bytes each), when the first hold ends at the
-- earliest, and the last one at the latest (8 bytes each, µs). Then records of 33 bytes.
-- A record is of up to 32 equal holds: the upper bits of their ids, their block (16 bytes), 1 if they are charged at
-- their end, tokens of each (4 bytes), end (8 bytes, µs), and a mask of the lower 5 bits of their ids (4 bytes). The
-- records of a block stand together.

-- Returns the functions on the holds of a state in table form: s.holds = {count, held, captures, next, last, text, from}
-- by name, or nil; the records are in `text`, from the position `from` on. They are created only on demand.
local function on_holds()
  local floor, max, min, unpack, pack = math.floor, math.max, math.min, struct.unpack, struct.pack
  local head, record, width, most, longest = '>I8I2I4I4I8I8', '>c16BI4I8I4', 33, 1024, 2 ^ 50

  local function advance(whole, part, tokens, n, d)
    local parts = part + tokens * (n % d)
    local carry = floor(parts / d)
    return whole + tokens * floor(n / d) + carry, parts - carry * d
  end

  local function later(whole, part, other, rest)
    return whole > other or (whole == other and part > rest)
  end

  -- The number of holds of a mask: counts its bits in pairs, in fours, in bytes, and adds the bytes.
  local function holds_in(mask)
    local band, shift = bit.band, bit.rshift
    mask = mask - band(shift(mask, 1), 0x55555555)
    mask = band(mask, 0x33333333) + band(shift(mask, 2), 0x33333333)
    return band(mask + shift(mask, 4), 0x0f0f0f0f) % 255
  end

  -- Reads the text behind the bar. Returns the holds, and when they were written; nil if it cannot be that of holds.
  local function read(text)
    local size = (#text - 34) / width
    if size % 1 ~= 0 or size < 1 then return nil end
    local seen, count, held, captures, next, last, from = unpack(head, text)
    if count < size or count > most or held < count or captures > held or next > last or last >= 2 ^ 53
      or seen >= 2 ^ 53 then return nil end
    local h = {count = count, held = held, captures = captures, next = next, last = last, text = text, from = from}
    return h, seen
  end

  -- Writes what `read` reads.
  local function text(h)
    return pack(head, now, h.count, h.held, h.captures, h.next, h.last) .. string.sub(h.text, h.from)
  end

  -- Moves all times after the clock was set back; see `set_back` in lib/bucket. Returns whether the records are valid.
  local function shift(h, seen)
    local function moved(at)
      return at > now and max(now, at - seen + now) or at
    end
    h.next, h.last = moved(h.next), moved(h.last)
    local records = {}
    for at = h.from, #h.text, width do
      local block, captured, tokens, ending, mask = unpack(record, h.text, at)
      if ending >= 2 ^ 53 then return false end
      records[#records + 1] = pack(record, block, captured, tokens, moved(ending), mask)
    end
    h.text, h.from = table.concat(records), 1
    return true
  end

  -- Charges tokens at the time `at`, in full or until the level is empty: in full to the first `ours` levels, or, if that
  -- is nil, to those with at least this burst.
  local function settle(s, at, amount, ours)
    for o = 2, #s, 7 do
      local n, d, burst = s[o + 4], s[o + 5], s[o + 6]
      local in_full = not ours and amount <= burst or ours and o <= 7 * ours - 5
      local tokens = in_full and amount or min(amount, burst)
      if n == 0 and d > 1 then
        -- To the window in which the end is found.
        if in_full then calendar().overuse(s, o, now, tokens) else calendar().charge(s, o, now, tokens, false) end
      elseif n == 0 then
        s[o] = max(s[o], min(s[o] + tokens, in_full and longest or burst))
      else
        local whole, part, end_, rest = s[o], s[o + 1], now + longest, 0
        if not in_full then end_, rest = advance(at, 0, burst, n, d) end
        if whole < at then whole, part = at, 0 end
        if tokens * (n / d) > longest then
          whole, part = end_, rest
        else
          whole, part = advance(whole, part, tokens, n, d)
          if later(whole, part, end_, rest) then whole, part = end_, rest end
        end
        if later(whole, part, s[o], s[o + 1]) then s[o], s[o + 1] = whole, part end
        if later(s[o], s[o + 1], s[o + 2], s[o + 3]) then s[o + 2], s[o + 3] = s[o], s[o + 1] end
      end
    end
  end

  -- Ends the holds whose time has come, in the order of their ends. Returns whether the records are valid.
  local function sweep(s)
    local stored, ended, left = s.holds.text, {}, {}
    local h = {count = 0, held = 0, captures = 0, next = 2 ^ 53, last = 0, from = 1}
    for at = s.holds.from, #stored, width do
      local _, captured, tokens, ending, mask = unpack(record, stored, at)
      if tokens < 1 or captured > 1 or ending >= 2 ^ 53 or mask == 0 then return false end
      local holds = holds_in(mask)
      if ending > now then
        h.count, h.held = h.count + holds, h.held + holds * tokens
        h.captures = h.captures + holds * captured * tokens
        h.next, h.last = min(h.next, ending), max(h.last, ending)
        left[#left + 1] = string.sub(stored, at, at + width - 1)
      elseif captured == 1 then
        ended[#ended + 1] = {ending, tokens, holds}
      end
    end
    if h.count > most or h.held >= 2 ^ 32 then return false end
    table.sort(ended, function(one, other)
      return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2])
    end)
    for _, holds in ipairs(ended) do
      for _ = 1, holds[3] do settle(s, holds[1], holds[2]) end
    end
    h.text = table.concat(left)
    s.holds = h.count > 0 and h or nil
    return true
  end

  -- When a level that is full at `full` is full again once all holds have ended, at the latest.
  local function full_from(h, full, n, d)
    local whole, part = max(full, h.last), 0
    if h.captures * (n / d) > longest then return whole + longest end
    whole, part = advance(whole, part, h.captures, n, d)
    return part > 0 and whole + 1 or whole
  end

  return {read = read, text = text, shift = shift, settle = settle, sweep = sweep, full_from = full_from,
    holds_in = holds_in}
end
