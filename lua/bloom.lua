-- bloom: one shard of a Bloom filter, in three strings: a configuration and two arrays of bits.
-- The configuration is `bloom1 shards bits hashes forget generation`. `forget` is in ms; 0 means never. `generation` is
-- the newest generation that has an item. A generation is the time divided by `forget`, rounded down. Generation g uses
-- array g % 2.
-- Four arguments, from `at`, describe the requested filter: the configuration (without the generation if the filter
-- forgets), hashes, forget (µs), and the offset of the last byte of an array. An item is a list of positions, one per hash.
-- A problem is returned as the second value. It is the stored configuration if that differs, -1 for a key
-- of another type, or an error of Redis.
local together = 64 -- bits in one command: more bits need larger tables, which is slower
local sampled = 4096 -- bytes: enough to estimate how full an array is within about 1 %, in about a microsecond

local function trouble(reply)
  return find(reply.err, 'WRONGTYPE', 1, true) and -1 or reply
end

-- Returns the problem of the arrays: another type, or another length than requested. Without a problem, the second
-- value is whether any array exists.
local function inspect(f)
  local there = false
  for slot = 0, 1 do
    local length = attempt('STRLEN', f[slot])
    if type(length) == 'table' then return trouble(length) end
    if length ~= 0 and length ~= f.last + 1 then return format('%d bytes of bits', length) end
    there = there or length ~= 0
  end
  return nil, there
end

-- Opens a filter for reading, or returns nil and the problem. `f.stored` is the generation in the configuration, nil
-- if the configuration does not exist or was lost. `f.newest` is the generation of the bits, below all others if no array
-- exists. It is set even if the configuration was lost.
function bloom.open(config, bits0, bits1, args, at, now)
  local want = args[at]
  local f = {
    config = config, [0] = bits0, [1] = bits1, args = args, want = want, hashes = number(args[at + 1]),
    last = args[at + 3], current = 0, newest = -math.huge,
  }
  local stored, forget = attempt('GET', config), number(args[at + 2])
  if stored == want then
    f.stored, f.newest = 0, 0
    return f
  elseif type(stored) == 'table' then
    return nil, trouble(stored)
  end
  if forget > 0 then f.forget, f.current = forget, floor(now / forget) end
  if stored then
    local newest = forget > 0 and sub(stored, 1, #want) == want and number(sub(stored, #want + 1))
    -- Loops over generations end only if numbers are exact.
    local is_exact = newest and newest % 1 == 0 and newest >= 0 and newest < 2 * lift
    if not is_exact then return nil, sub(stored, 1, 200) end
    f.stored, f.newest = newest, newest
    if newest > f.current then f.current = newest end
  else
    local problem, there = inspect(f)
    if problem then return nil, problem end
    if there then f.newest = f.current end
  end
  return f
end

-- Begins the current generation, and deletes forgotten generations. Returns the problem.
local function begin(f, bits, other, lasts)
  local problem = inspect(f)
  if problem then return problem end
  if f.stored then attempt('UNLINK', bits, f.current > f.stored + 1 and other or bits) end
  local saved
  if lasts then
    saved = attempt('SET', f.config, f.want .. format('%d', f.current), 'PX', format('%d', 5 * lasts + 7200000))
  else
    saved = attempt('SET', f.config, f.want)
  end
  if saved.err then return saved end
  f.stored = f.current
end

-- Prepares a filter for insertions. Returns the problem.
function bloom.enter(f)
  if f.entered then return end
  local bits, other = f[f.current % 2], f[(f.current + 1) % 2]
  local lasts = f.forget and f.forget / 1000
  if f.stored ~= f.current then
    local problem = begin(f, bits, other, lasts)
    if problem then return problem end
  end
  if attempt('EXISTS', bits) == 0 then
    -- The array is created in full, even if it was evicted: growing it later takes more memory. If the configuration
    -- were evicted too, a shorter array would belong to another filter.
    local made = attempt('SETRANGE', bits, f.last, '\0')
    if type(made) == 'table' then return made end
    -- The configuration was written when the generation began, and outlives the array.
    if lasts then attempt('PEXPIRE', bits, format('%d', 4 * lasts + 3600000)) end
  end
  f.entered = true
end

-- Returns the words of a command on the bits of `count` items.
local function words_for(verb, width, count)
  local words = {}
  for i = 1, count * width, width do
    words[i], words[i + 1], words[i + 2] = verb, 'u1', ''
    if width > 3 then words[i + 3] = '1' end
  end
  return words
end

-- Runs `command` for the bits of the items that are not in `seen`, with `width` words per bit. The first item is at the
-- argument `from`. Sets seen[item] to 1 if all its bits were already set, else to 0. Returns the problem.
local function ask(f, command, verb, width, bits, seen, from, items)
  local args, hashes = f.args, f.hashes
  local most = min(items, max(1, floor(together / hashes)))
  local words, which, item = words_for(verb, width, most * hashes), {}, 1
  while item <= items do
    local at, n = 3, 0
    while item <= items and n < most do
      if seen[item] ~= 1 then
        n = n + 1
        which[n] = item
        local first = from + (item - 1) * hashes
        for i = first, first + hashes - 1 do
          words[at], at = args[i], at + width
        end
      end
      item = item + 1
    end
    if n == 0 then return end
    local old = attempt(command, bits, unpack(words, 1, n * hashes * width))
    if old.err then return trouble(old) end
    for i = 1, n do
      local all = 1
      for j = (i - 1) * hashes + 1, i * hashes do
        if old[j] == 0 then all = 0 break end
      end
      seen[which[i]] = all
    end
  end
end

-- Returns the oldest generation that is not forgotten.
local function oldest(f)
  return f.forget and f.current - 1 or f.current
end

local function look(f, generation, seen, from, items)
  return ask(f, 'BITFIELD_RO', 'GET', 3, f[generation % 2], seen, from, items)
end

-- Returns a list with 1 for each item at these arguments that the filter contains, else 0.
function bloom.contains(f, from, to)
  local seen, items = {}, (to - from + 1) / f.hashes
  for item = 1, items do seen[item] = 0 end
  for generation = f.newest, oldest(f), -1 do
    local problem = look(f, generation, seen, from, items)
    if problem then return nil, problem end
  end
  return seen
end

-- Inserts the items at these arguments. `bloom.enter` must be called before. Returns a list with 1 for each
-- item that the filter contained before, else 0; if `blind`, that its current generation contained.
function bloom.add(f, from, to, blind)
  local seen, items = {}, (to - from + 1) / f.hashes
  local problem = ask(f, 'BITFIELD', 'SET', 4, f[f.current % 2], seen, from, items)
  if not problem and f.forget and not blind then problem = look(f, f.current - 1, seen, from, items) end
  if problem then return nil, problem end
  f.newest = f.current
  return seen
end

-- Returns the newest generation that contains the item at this argument, nil if there is none.
function bloom.generation_of(f, from)
  local seen = {0}
  for generation = f.newest, oldest(f), -1 do
    local problem = look(f, generation, seen, from, 1)
    if problem then return nil, problem end
    if seen[1] == 1 then return generation end
  end
end

-- Returns how many bits are set in the sample: the first bytes of a generation's array. The first result is kept for the call.
function bloom.sample(f, generation)
  local bits = f[generation % 2]
  local ones = f[bits] or attempt('BITCOUNT', bits, 0, sampled - 1)
  if type(ones) == 'table' then return nil, trouble(ones) end
  f[bits] = ones
  return ones
end

-- Deletes an opened filter. Returns the problem.
function bloom.clear(f)
  local problem = inspect(f)
  if problem then return problem end
  local gone = attempt('UNLINK', f.config, f[0], f[1])
  if type(gone) == 'table' then return gone end
end

-- Returns a list with the number of set bits in the current generation and in the previous one.
function bloom.count(f)
  local counts = {0, 0}
  for generation = f.newest, oldest(f), -1 do
    local count = attempt('BITCOUNT', f[generation % 2])
    if type(count) == 'table' then return nil, trouble(count) end
    counts[f.current - generation + 1] = count
  end
  return counts
end
