-- claim: a lease on an item of a Bloom filter. It is held while the item is handled. The filter contains handled items.
-- KEYS      the mark is the filter's configuration; fifth and sixth are its two arrays of bits
-- ARGV      for all runs: the four arguments of lib/bloom; for `look` and `enter`: the item's positions
kind.keys, kind.fenced, kind.arguments = 6, false, tonumber(ARGV[6])

local function fail(problem)
  if problem == -1 then error('WRONGTYPE of a filter', 0) end
  error(type(problem) == 'table' and problem.err or problem, 0)
end

-- Finds `seen N` if the filter contains the item: N bits are set in the sample of the item's generation. Finds the
-- stored configuration if it differs. In both cases there is nothing to do.
function kind.look(bypass, base, at)
  local f, problem = bloom.open(mark, fifth, sixth, base)
  local generation, ones
  if f then generation, problem = bloom.generation_of(f, at) end
  if generation then ones, problem = bloom.sample(f, generation) end
  if type(problem) == 'string' then return problem, true end
  if problem then fail(problem) end
  if ones and not bypass then return string.format('seen %d', ones), true end
end

-- Inserts the item even if the claim was lost, since the item was handled. The waiters must look again. Returns how
-- many bits are set in the sample of the current generation.
function kind.enter(_, base, at)
  call('ZREM', beats, '') -- as in lib/exact
  local f, problem = bloom.open(mark, fifth, sixth, base)
  problem = problem or bloom.enter(f)
  local _, ones
  if not problem then _, problem = bloom.add(f, at, at + kind.arguments - 1, true) end
  if not problem then ones, problem = bloom.sample(f, f.current) end
  if type(problem) == 'string' then return problem end
  if problem then fail(problem) end
  return nil, true, ones
end
