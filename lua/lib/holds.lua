-- holds: what is held of a bucket. Joined between lib/calendar and lib/bucket, which stores it behind the numbers of a state:
-- `numbers|held captures next last|records`. `captures` are those of the held tokens that are charged when their holds
-- end. The first hold ends at `next` (µs) at the earliest, the last one at `last` at the latest. A record has 29 bytes:
-- id (16 bytes), 1 if it is charged at its end, tokens (4 bytes), end (8 bytes, µs). A state with holds always has the
-- time at which it was written.

-- Returns the functions on the holds of a state in table form: s.holds = {held, captures, next, last, tail} by name, or
-- nil. They are created only on demand.
local function on_holds()
  local floor, max, min, unpack = math.floor, math.max, math.min, struct.unpack
  local record, width, most, longest = '>c16BI4I8', 29, 1024, 2 ^ 50

  local function advance(whole, part, tokens, n, d)
    local parts = part + tokens * (n % d)
    local carry = floor(parts / d)
    return whole + tokens * floor(n / d) + carry, parts - carry * d
  end

  local function later(whole, part, other, rest)
    return whole > other or (whole == other and part > rest)
  end

  -- Reads the text behind the numbers. Nil if it cannot be that of holds.
  local function read(text)
    local held, captures, next, last, from = string.match(text, '^(%d+) (%d+) (%d+) (%d+)|()')
    if not held then return nil end
    local h = {held = tonumber(held), captures = tonumber(captures), next = tonumber(next), last = tonumber(last),
      tail = string.sub(text, from)}
    local count = #h.tail / width
    local fits = count % 1 == 0 and count >= 1 and count <= most and h.held >= count and h.held < 2 ^ 32
    if fits and h.captures <= h.held and h.next <= h.last and h.last < 2 ^ 53 then return h end
  end

  -- Writes what `read` reads.
  local function text(h)
    return string.format('|%d %d %d %d|', h.held, h.captures, h.next, h.last) .. h.tail
  end

  -- Moves all times after the clock was set back; see `set_back` in lib/bucket. Returns whether the records are valid.
  local function shift(h, seen)
    local function moved(at)
      return at > now and max(now, at - seen + now) or at
    end
    h.next, h.last = moved(h.next), moved(h.last)
    local records = {}
    for at = 1, #h.tail, width do
      local id, captured, tokens, ending = unpack(record, h.tail, at)
      if ending >= 2 ^ 53 then return false end
      records[#records + 1] = struct.pack(record, id, captured, tokens, moved(ending))
    end
    h.tail = table.concat(records)
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
    local tail, ended, left = s.holds.tail, {}, {}
    local held, captures, next, last = 0, 0, 2 ^ 53, 0
    for at = 1, #tail, width do
      local _, captured, tokens, ending = unpack(record, tail, at)
      if tokens < 1 or captured > 1 or ending >= 2 ^ 53 then return false end
      if ending > now then
        held, captures = held + tokens, captures + captured * tokens
        next, last = min(next, ending), max(last, ending)
        left[#left + 1] = string.sub(tail, at, at + width - 1)
      elseif captured == 1 then
        ended[#ended + 1] = {ending, at, tokens}
      end
    end
    table.sort(ended, function(one, other)
      return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2])
    end)
    for _, hold in ipairs(ended) do settle(s, hold[1], hold[3]) end
    s.holds = nil
    if #left > 0 then
      s.holds = {held = held, captures = captures, next = next, last = last, tail = table.concat(left)}
    end
    return true
  end

  -- When a level that is full at `full` is full again once all holds have ended, at the latest.
  local function full_from(h, full, n, d)
    local whole, part = max(full, h.last), 0
    if h.captures * (n / d) > longest then return whole + longest end
    whole, part = advance(whole, part, h.captures, n, d)
    return part > 0 and whole + 1 or whole
  end

  return {read = read, text = text, shift = shift, settle = settle, sweep = sweep, full_from = full_from}
end
