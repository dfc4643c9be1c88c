-- state: the common part of all functions: the operations, and the state of a key in a call. An operation takes the
-- keys and the arguments, of which the first is its name. It returns the reply, or raises an error.
local operations = {}

-- The kinds of leases, by the name in the second argument. Each has
--   holders    the rules of its holders: mutex, permits or rw_lock
--   outcome    ? the stored outcome of earlier leases: answer, exact or claim
--   keys       how many keys a run has
--   fenced     whether each grant has its own fences, which the mark stores
--   zero_fence   whether the usual fence of a grant is 0, and not the time
--   ttl        the position of the ttl in the arguments of an acquire, after those that all runs of the kind share,
--              from 4 on
--   looks, enters   the number of arguments of an acquire, and of a completion; or `hashes`: the argument with this
--                   number for both
-- The rules of outcomes. `first`: the first key of the run; `at`: the first argument of the run; `batch`: see runs
--   look(keys, first, args, at, now, bypass, batch)   returns what was found, and whether the work is done: true: done;
--                 false: done for a caller that would have to wait; nil: not done
--   enter(keys, first, args, at, now, holding, waiting, batch)   returns the obstacle, if any; what was stored (false:
--                 nothing; a text: the message for the waiters, if there may be some: `waiting`); how full the filter is
--   is_small(args, at)   whether the stored outcome is about as large as the claim that is deleted then
local kinds = {}

local lift = 4503599627370496 -- 2^52: above every time. ZSET members with higher scores neither hold nor wait
local horizon = 2 ^ 50 -- µs, 35 years: the longest time in which missing tokens come back, apart from reservations
local second = 1000000 -- µs
local ranks, plain = 562949953421312, 140737488355328 -- 2^49: the scores of one rank; 2^47: of those, without a flow
local state = {}

-- Creates the state of one key. The keys of a lease:
--   lock     the holders. A mutex: a string; others: ZSET: token -> expiry (µs)
--   mark     data beside the holders: a fence, the order of the waiters, an answer, a filter
--   queue    ZSET: each waiter -> its score: the lowest is served first
--   beats    ZSET: each waiter -> until when it counts as alive (µs); each tombstone (a withdrawn token) -> until when it is
--            kept (µs) plus 2^52
-- The keys of the outcome follow. The state also has `kind` and `holders` (see `kinds`), `args`, `now` (µs), `waiting`
-- (whether there are waiters or tombstones), and of the current run `asker` (its token) and `heard` (the messages to
-- its process). Other fields are documented where they are set; a missing field was not read yet.
function state.of(kind, keys, first, args, now, waiting, text)
  return {
    kind = kind, holders = kind.holders, args = args, now = now, waiting = waiting, asker = text,
    lock = keys[first], mark = keys[first + 1], queue = keys[first + 2], beats = keys[first + 3],
  }
end

-- Returns the whole number that the text is, or begins with before a space; 0 for a missing key.
function state.whole(text)
  local value = number(text or 0) or number(match(text, '^(%d+) ') or '')
  if value and value % 1 == 0 and value >= 0 and value < 9007199254740992 then return value end
  error('WRONGTYPE of a number', 0)
end

-- Returns the error for a raised problem; nil if a key is of another type, or does not contain a number where one is
-- expected.
function state.failure(problem)
  local text = type(problem) == 'table' and problem.err or problem
  if find(text, 'WRONGTYPE', 1, true) or find(text, 'not an integer', 1, true) then return nil end
  return {err = match(text, '^%u+ ') and text or 'ERR ' .. text}
end

-- Returns the reply for a command that failed: -1 for a key of another type, and `rest`; otherwise the error.
function state.refused(now, failure, ...)
  if find(failure.err, 'WRONGTYPE', 1, true) then return {now, -1, ...} end
  return failure
end

-- Returns whether the server is out of memory. Without functions, it refuses writes that need memory, unless another
-- write of the script comes first.
function state.is_full(problem)
  return find(type(problem) == 'table' and problem.err or problem, 'OOM', 1, true)
end

-- Calls a function in protected mode; if it fails for lack of memory, again after a command that removes nothing.
function state.insist(beats, step, ...)
  local values = {protected(step, ...)}
  if values[1] or not state.is_full(values[2]) then return unpack(values, 1, 9) end
  attempt('ZREM', beats, '')
  return protected(step, ...)
end

-- Runs `step(c, run)` for each run, and returns the reply: the time, then for each run the first `width` values that it
-- returns; -1 and zeros for a key of another type.
function state.each(keys, args, width, step)
  local kind, now = kinds[args[2]], clock()
  local reply = {now}
  for run = 1, #keys / kind.keys do
    local c = state.of(kind, keys, kind.keys * (run - 1) + 1, args, now)
    local values = {state.insist(c.beats, step, c, run)}
    if not values[1] then
      local failure = state.failure(values[2])
      if failure then return failure end
      values = {false, -1}
    end
    for i = 2, width + 1 do reply[#reply + 1] = values[i] or 0 end
  end
  return reply
end
