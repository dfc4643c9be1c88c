-- filter: the operations on a Bloom filter. Keys: the configuration, the bits of even generations, and of odd ones.
-- Arguments: the four of bloom; then the positions of each item. If there is a problem, each field of the reply is the
-- problem, see bloom.

-- Opens the filter, and runs `step`, which returns a list of this number of `fields`, or a problem. Returns the reply.
function filter.reply(keys, args, fields, step)
  local now = clock()
  local f, problem = bloom.open(keys[1], keys[2], keys[3], args, 2, now)
  local all
  if f then all, problem = step(f, args) end
  if type(problem) == 'table' then return problem end
  if problem then
    all = {}
    for i = 1, fields do all[i] = problem end
  end
  table.insert(all, 1, now)
  return all
end

local function insert(f, args)
  local problem = bloom.enter(f)
  if problem then return nil, problem end
  return bloom.add(f, 6, #args)
end

local function contains(f, args)
  return bloom.contains(f, 6, #args)
end

local function enter(f)
  return {1}, bloom.enter(f)
end

local function clear(f)
  return {1}, bloom.clear(f)
end

-- Inserts items. Returns now (µs); per item 1 if the filter contained it before, else 0.
function operations.check_and_insert(keys, args)
  return filter.reply(keys, args, (#args - 5) / args[3], insert)
end

-- Returns now (µs); per item 1 if the filter contains it, else 0.
function operations.contains(keys, args)
  return filter.reply(keys, args, (#args - 5) / args[3], contains)
end

-- Returns now (µs); the number of set bits in the current generation; the same in the one before. Some ms for 64 MiB.
function operations.count(keys, args)
  return filter.reply(keys, args, 2, bloom.count)
end

-- Deletes all items and the configuration. Returns now (µs); 1.
function operations.clear_filter(keys, args)
  return filter.reply(keys, args, 1, clear)
end

-- Creates the filter with this configuration if it does not exist. Returns now (µs); 1.
function operations.open_filter(keys, args)
  return filter.reply(keys, args, 1, enter)
end

-- Returns the stored configuration, and how many bits are set in the sample of each array.
-- Arguments  the size of the sample (bytes)
-- Returns    now (µs); the configuration (0: there is none; -1: a key is of another type); the number of set bits in the
--            sample of the first array; the same of the second
function operations.inspect_filter(keys, args)
  local now = clock()
  local reply = {now, attempt('GET', keys[1]) or 0}
  for i = 2, 3 do reply[i + 1] = attempt('BITCOUNT', keys[i], 0, args[2] - 1) end
  for i = 2, 4 do
    if type(reply[i]) == 'table' then return state.refused(now, reply[i], 0, 0) end
  end
  return reply
end
