-- bloom: one shard of a Bloom filter, in three strings: a configuration and two arrays of bits.
-- The configuration is `bloom1 shards bits hashes forget generation`. `forget` is in ms; 0 means never. `generation` is
-- the newest generation that has an item. A generation is the time divided by `forget`, rounded down. Generation g uses
-- array g % 2.
-- Four arguments, from ARGV[at], describe the requested filter: the configuration (without the generation if the filter
-- forgets), hashes, forget (µs), and the offset of the last byte of an array. An item is a list of positions in ARGV,
-- one per hash.
-- A problem is returned as the second value. It is the stored configuration if that differs, -1 for a key
-- of another type, or an error of Redis.
local bloom = {}
do
  local call, format, sub, ARGV = redis.pcall, string.format, string.sub, ARGV

  local function trouble(answer)
    return string.find(answer.err, 'WRONGTYPE', 1, true) and -1 or answer
  end

  -- Returns the problem of the arrays: another type, or another length than requested. Without a problem, the second
  -- value is whether any array exists.
  local function inspect(f)
    local there = false
    for slot = 0, 1 do
      local length = call('STRLEN', f[slot])
      if type(length) == 'table' then return trouble(length) end
      if length ~= 0 and length ~= ARGV[f.at + 3] + 1 then return format('%d bytes of bits', length) end
      there = there or length ~= 0
    end
    return nil, there
  end

  -- Opens a filter for reading, or returns nil and the problem. `f.stored` is the generation in the configuration, nil
  -- if the configuration does not exist or was lost. `f.newest` is the generation of the bits, below all others if no array
  -- exists.
  -- It is set even if the configuration was lost.
  function bloom.open(config, bits0, bits1, at)
    local f = {config = config, [0] = bits0, [1] = bits1, at = at, current = 0, newest = -math.huge}
    local stored, want = call('GET', config), ARGV[at]
    if stored == want then
      f.stored, f.newest = 0, 0
      return f
    elseif type(stored) == 'table' then
      return nil, trouble(stored)
    end
    local forget = tonumber(ARGV[at + 2])
    if forget > 0 then f.forget, f.current = forget, math.floor(now / forget) end
    if stored then
      local newest = forget > 0 and sub(stored, 1, #want) == want and tonumber(sub(stored, #want + 1))
      -- Loops over generations end only where numbers are exact.
      if not newest or newest % 1 ~= 0 or newest < 0 or newest >= 9007199254740992 then
        return nil, sub(stored, 1, 200)
      end
      f.stored, f.newest = newest, newest
      if newest > f.current then f.current = newest end
    else
      local problem, there = inspect(f)
      if problem then return nil, problem end
      if there then f.newest = f.current end
    end
    return f
  end

  -- Prepares a filter for insertions and deletes the forgotten generations. Returns the problem.
  function bloom.enter(f)
    local bits, other, last = f[f.current % 2], f[(f.current + 1) % 2], ARGV[f.at + 3]
    local lasts = f.forget and f.forget / 1000
    if f.stored ~= f.current then
      local problem = inspect(f)
      if problem then return problem end
      if f.stored then call('UNLINK', bits, f.current > f.stored + 1 and other or bits) end
      local saved
      if lasts then
        saved = call('SET', f.config, ARGV[f.at] .. format('%d', f.current), 'PX', format('%d', 5 * lasts + 7200000))
      else
        saved = call('SET', f.config, ARGV[f.at])
      end
      if saved.err then return saved end
      f.stored = f.current
    end
    if call('EXISTS', bits) == 0 then
      -- The whole array, also if it was evicted: growing it later takes more memory, and a shorter one would be that of another
      -- filter, should the configuration go as well.
      local made = call('SETRANGE', bits, last, '\0')
      if type(made) == 'table' then return made end
      -- The configuration, which was written when the generation began, outlives it.
      if lasts then call('PEXPIRE', bits, format('%d', 4 * lasts + 3600000)) end
    end
  end

  local together = 64 -- bits in one command: more bits need larger tables, which is slower

  -- Runs `command` for the bits of the items that are not in `seen`, with `width` words per bit. The first item is at
  -- ARGV[from]. Sets seen[item] to 1 if all its bits were already set, else to 0. Returns the problem.
  local function ask(command, verb, width, bits, seen, from, hashes, items)
    local most = math.min(items, math.max(1, math.floor(together / hashes)))
    local words, which, item = {}, {}, 1
    for i = 1, most * hashes * width, width do
      words[i], words[i + 1], words[i + 2] = verb, 'u1', ''
      if width > 3 then words[i + 3] = '1' end
    end
    while item <= items do
      local at, n = 3, 0
      while item <= items and n < most do
        if seen[item] ~= 1 then
          n = n + 1
          which[n] = item
          local first = from + (item - 1) * hashes
          for i = first, first + hashes - 1 do
            words[at], at = ARGV[i], at + width
          end
        end
        item = item + 1
      end
      if n == 0 then return end
      local old = call(command, bits, unpack(words, 1, n * hashes * width))
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

  -- The oldest generation that is not forgotten.
  local function oldest(f)
    return f.forget and f.current - 1 or f.current
  end

  local function look(f, generation, seen, from, hashes, items)
    return ask('BITFIELD_RO', 'GET', 3, f[generation % 2], seen, from, hashes, items)
  end

  -- Returns a list with 1 for each item at ARGV[from] to ARGV[to] that the filter contains, else 0.
  function bloom.contains(f, from, to)
    local hashes, seen = tonumber(ARGV[f.at + 1]), {}
    local items = (to - from + 1) / hashes
    for item = 1, items do seen[item] = 0 end
    for generation = f.newest, oldest(f), -1 do
      local problem = look(f, generation, seen, from, hashes, items)
      if problem then return nil, problem end
    end
    return seen
  end

  -- Inserts the items at ARGV[from] to ARGV[to]. `bloom.enter` must be called before. Returns a list with 1 for each
  -- item that the filter contained before, else 0; if `blind`, that its current generation contained.
  function bloom.add(f, from, to, blind)
    local hashes, seen = tonumber(ARGV[f.at + 1]), {}
    local items = (to - from + 1) / hashes
    local problem = ask('BITFIELD', 'SET', 4, f[f.current % 2], seen, from, hashes, items)
    if not problem and f.forget and not blind then problem = look(f, f.current - 1, seen, from, hashes, items) end
    if problem then return nil, problem end
    return seen
  end

  -- Returns the newest generation that contains the item at ARGV[from], nil if there is none.
  function bloom.generation_of(f, from)
    local hashes, seen = tonumber(ARGV[f.at + 1]), {0}
    for generation = f.newest, oldest(f), -1 do
      local problem = look(f, generation, seen, from, hashes, 1)
      if problem then return nil, problem end
      if seen[1] == 1 then return generation end
    end
  end

  local sampled = 4096 -- bytes: enough to estimate how full an array is within about 1 %, in about a microsecond
  local samples = {}

  -- Returns how many bits are set in the sample: the first bytes of a generation's array. The first result is cached.
  function bloom.sample(f, generation)
    local bits = f[generation % 2]
    local ones = samples[bits] or call('BITCOUNT', bits, 0, sampled - 1)
    if type(ones) == 'table' then return nil, trouble(ones) end
    samples[bits] = ones
    return ones
  end

  -- Deletes a filter that was opened. Returns the problem.
  function bloom.clear(f)
    local problem = inspect(f)
    if problem then return problem end
    local gone = call('UNLINK', f.config, f[0], f[1])
    if type(gone) == 'table' then return gone end
  end

  -- Returns a list with the number of set bits in the current generation and in the one before.
  function bloom.count(f)
    local counts = {0, 0}
    for generation = f.newest, oldest(f), -1 do
      local count = call('BITCOUNT', f[generation % 2])
      if type(count) == 'table' then return nil, trouble(count) end
      counts[f.current - generation + 1] = count
    end
    return counts
  end

  -- Opens the filter that the first keys and arguments of a script describe, and runs `step`, which returns a list of as
  -- many `fields`, or a problem. Returns the reply: the list, or the problem in each field.
  function bloom.reply(fields, step)
    local f, problem = bloom.open(KEYS[1], KEYS[2], KEYS[3], 1)
    local all
    if f then all, problem = step(f) end
    if type(problem) == 'table' then return problem end
    if problem then
      all = {}
      for i = 1, fields do all[i] = problem end
    end
    table.insert(all, 1, now)
    return all
  end
end
