-- claim: a lease on an item of a Bloom filter. It is held while the item is handled. The filter contains handled items.
-- Keys       the mark is the filter's configuration; the fifth and the sixth are its two arrays of bits
-- Arguments  for all runs: the four arguments of bloom; for `look` and `enter`: the item's positions

local function fail(problem)
  if problem == -1 then error('WRONGTYPE of a filter', 0) end
  error(type(problem) == 'table' and problem.err or problem, 0)
end

-- Opens the filter, once in a call.
local function open(keys, first, args, now, batch)
  local config, opened = keys[first + 1], batch and batch.opened
  local f, problem = opened and opened[config], nil
  if not f then
    f, problem = bloom.open(config, keys[first + 4], keys[first + 5], args, 4, now)
    if opened then opened[config] = f end
  end
  return f, problem
end

-- Finds `seen N` if the filter contains the item: N bits are set in the sample of the item's generation. Finds the
-- stored configuration if it differs. In both cases there is nothing to do.
function claim.look(keys, first, args, at, now, bypass, batch)
  local f, problem = open(keys, first, args, now, batch)
  local generation, ones
  if f then generation, problem = bloom.generation_of(f, at) end
  if generation then ones, problem = bloom.sample(f, generation) end
  if type(problem) == 'string' then return problem, true end
  if problem then fail(problem) end
  if ones and not bypass then return format('seen %d', ones), true end
end

function claim.is_small()
  return true
end

-- Inserts the item even if the claim was lost, since the item was handled. The waiters must look again. Returns how
-- many bits are set in the sample of the current generation.
function claim.enter(keys, first, args, at, now, _, _, batch)
  local f, problem = open(keys, first, args, now, batch)
  problem = problem or bloom.enter(f)
  local ones
  if not problem then ones, problem = bloom.add(f, at, at + f.hashes - 1, true) end
  if not problem then ones, problem = bloom.sample(f, f.current) end
  if type(problem) == 'string' then return problem end
  if problem then fail(problem) end
  return nil, true, ones
end

kinds.claim = {holders = mutex, outcome = claim, keys = 6, ttl = 8, hashes = 5}
