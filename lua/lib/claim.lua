-- claim: a lease on an item of a Bloom filter, held while the item is handled; one that was handled is in the filter.
-- KEYS      the mark is the filter's configuration; then its two arrays of bits
-- ARGV      for all runs: what lib/bloom takes; to look and to enter: the item's positions
keys, kept, scope = 6, false, 4

-- Opens the filter; the item's positions are from `first` up to `at`.
local function filter()
  local first = at
  at = first + tonumber(ARGV[base + 1])
  local f, problem = bloom.open(mark, fifth, sixth, base)
  return f, problem, first
end

local function fail(problem)
  if problem == -1 then error('WRONGTYPE of a filter', 0) end
  error(type(problem) == 'table' and problem.err or problem, 0)
end

-- `seen`, or what is stored in place of this filter: either way there is nothing to do.
look = function(insists)
  local f, problem, first = filter()
  local seen
  if f then seen, problem = bloom.contains(f, first, at - 1) end
  if type(problem) == 'string' then return problem, true end
  if problem then fail(problem) end
  if seen[1] == 1 and not insists then return 'seen', true end
end

-- What was handled was handled, whoever holds the claim by now: those who wait need to look again.
enter = function()
  local f, problem, first = filter()
  problem = problem or bloom.enter(f)
  local _
  if not problem then _, problem = bloom.add(f, first, at - 1) end
  if type(problem) == 'string' then return problem end
  if problem then fail(problem) end
  return nil, true
end
