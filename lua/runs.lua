-- runs: acquires and releases leases and places in the queue, and grants what becomes free. Enters the outcomes of leases.
-- Keys       see state, per run. The runs of one key stand next to each other
-- Arguments  see queue, then acquire; then those of the kind for all runs; then per run:
--            the verb: `acquire`; `bypass`: acquire in spite of outcomes of earlier leases; `release`; `withdraw`:
--            release, and refuse an acquire that runs later; `complete`: enter the outcome, and release;
--            the token; for acquire and bypass, the arguments of `look`; for complete, those of `enter`
-- Returns    now (µs); then per run four numbers, what was granted to this process (0, or a list of messages, see
--            grants), and for kinds with outcomes what `look` found, or why nothing was entered or released (0: nothing)
--            acquire: 1, expiry (µs), fence, 0: it holds
--                     2 (queued) or 0 (refused), when the next lease ends (µs, 0: unknown), 0, how many are ahead of it
--                     3: the work is done; -2: it was withdrawn before; -3: the server is out of memory; -1: a key is of
--                     another type
--            release: 1: it held; 2: it waited; 0: neither; -1: a key is of another type
--            complete: 1: it held; 2: another holds; 0: neither; -1: a key is of another type; then how full the filter is
--                      now, for kinds that have one, else 0
--            If all runs went the usual way, the reply is now alone: each acquire holds, for its ttl, with the usual
--            fence; each release and complete was of the holder, and told nothing more. The time is 0 where it was not
--            read: for a lone release of a lock that is a string.
-- Writes     leases, places, tombstones, the mark, the outcome; all with a ttl

-- Acquires. `c`: the state, if there may be waiters, or something is known of the key. Returns the four numbers of the reply,
-- what was found, and the state if it was needed.
local function acquire(c, kind, keys, first, args, now, verb, text, at, opened)
  local found, done
  if kind.outcome then found, done = kind.outcome.look(keys, first, args, now, verb == 'bypass', 7, at, opened) end
  if not done and not (c and c.waiting) then
    local expiry = now + args[4]
    local fence = kind.holders.take(c, kind, keys[first], keys[first + 1], text, now, expiry, args[5])
    if fence then return 1, expiry, fence, 0, found, c end
  end
  c = c or state.of(kind, keys, first, args, now, false, text)
  local status, at_end, fence, ahead = leases.acquire_busy(c, text, done, args[at])
  return status, at_end, fence, ahead, found, c
end

-- Enters the outcome of a lease, releases the lease, and tells the waiters to ask again.
local function complete(c, kind, keys, first, args, now, text, at, opened, freed)
  local lock = keys[first]
  local value = mutex.read(lock) or false
  local problem, entered, level = kind.outcome.enter(keys, first, args, now, value == text, 7, at, opened)
  if problem then return 0, 0, 0, 0, problem end
  if value == text then
    if freed and not c then freed[#freed + 1] = lock else call('DEL', lock) end
    value = nil
  end
  if c then
    c.value = value or false
    if entered and c.waiting then grants.dismiss(c, entered) end
    c.length, c.before, c.ends, c.settled = nil, nil, nil, false
  end
  return value == nil and 1 or value and 2 or 0, level or 0, 0, 0
end

-- Releases, or gives up a place. Returns the four numbers of the reply, nothing, and the state if it was needed.
local function release(c, kind, keys, first, args, now, verb, text, more, freed)
  if not c and verb == 'release' then
    return kind.holders.forget(nil, keys[first], keys[first + 1], text, now, freed) and 1 or 0, 0, 0, 0
  end
  c = c or state.of(kind, keys, first, args, now, false, text)
  local status, at_end, fence, ahead = leases.release(c, text, verb, more)
  return status, at_end, fence, ahead, nil, c
end

-- The same, also if the server is out of memory: the claim that is deleted is larger than what is recorded of an item. Without
-- functions, such a server refuses what grows only before another write; this one removes nothing.
local function complete_always(c, kind, keys, first, args, now, text, at, opened, freed)
  local done, status, level, _, _, found = protected(complete, c, kind, keys, first, args, now, text, at, opened, freed)
  if done then return status, level, 0, 0, found, c end
  if not (state.is_full(status) and kind.outcome.is_small(args, at)) then error(status, 0) end
  attempt('ZREM', keys[first + 3], '')
  status, level, _, _, found = complete(c, kind, keys, first, args, now, text, at, opened, freed)
  return status, level, 0, 0, found, c
end

-- Runs a verb. Returns the four numbers of its reply, what was found, and the state if there is one.
local function run(c, kind, keys, first, args, now, verb, text, at, opened, more, freed)
  if verb == 'release' or verb == 'withdraw' then
    return release(c, kind, keys, first, args, now, verb, text, more, freed)
  elseif verb == 'complete' then
    return complete_always(c, kind, keys, first, args, now, text, at, opened, freed)
  end
  return acquire(c, kind, keys, first, args, now, verb, text, at, opened)
end

-- Returns the state of a key that may have waiters, or of which something will be known for the next run.
local function state_of(kind, keys, first, args, now, text, waiting, kept)
  local c = state.of(kind, keys, first, args, now, waiting, text)
  c.kept = kept
  if waiting then queue.open(c) end
  return c
end

-- Returns how the run would have gone the usual way: when its lease ends, and its fence.
local function usual(kind, args, now, verb)
  if verb == 'acquire' or verb == 'bypass' then return now + args[4], kind.zero_fence and 0 or now end
  return 0, 0
end

-- Serves a call of one run.
local function lone(kind, keys, args, at)
  local verb, text, kept = args[at], args[at + 1], call('PTTL', keys[4])
  local waiting, now = kept ~= -2, 0
  if waiting or verb ~= 'release' or kind.holders.timed then now = clock() end
  local c = waiting and state_of(kind, keys, 1, args, now, text, true, kept) or nil
  local status, at_end, fence, ahead, found, known =
    run(c, kind, keys, 1, args, now, verb, text, at + 2, kind.hashes and {})
  local heard = known and known.heard
  if status == 1 and not found and not heard then
    local usual_end, usual_fence = usual(kind, args, now, verb)
    if at_end == usual_end and fence == usual_fence then return now end
  end
  return {now, status, at_end, fence, ahead, heard or 0, kind.outcome and (found or 0) or nil}
end

-- Returns whether any key has waiters or tombstones.
local function any_waits(keys, width)
  local names, last = {}, nil
  for i = 4, #keys, width do
    if keys[i] ~= last then
      last = keys[i]
      names[#names + 1] = last
    end
  end
  return call('EXISTS', unpack(names)) > 0
end

-- Runs a verb of a call of several runs. Returns what `run` does; the status is -1 for a key of another type, and after
-- another error -3, and the error.
local function run_one(c, kind, keys, first, args, now, verb, text, at, opened, more, freed)
  local done, status, at_end, fence, ahead, found, known =
    protected(run, c, kind, keys, first, args, now, verb, text, at, opened, more, freed)
  if done then return status, at_end, fence, ahead, found, known end
  local failure = state.failure(status)
  return failure and -3 or -1, 0, 0, 0, nil, c, failure
end

-- Serves a call of several runs.
local function many(kind, keys, args, at)
  local width, takes = kind.keys, kind.hashes and number(args[kind.hashes]) or kind.arguments
  local any, opened, now, freed = any_waits(keys, width), kind.hashes and {}, clock(), {}
  local reply, filled, is_usual, c, full, has_run = {now}, 1, true, nil, nil, false
  for first = 1, #keys, width do
    local verb, text, lock, next_lock = args[at], args[at + 1], keys[first], keys[first + width]
    at = at + 2
    if c and c.lock == lock then
      c.asker, c.heard, c.known = text, nil, nil
    elseif any or lock == next_lock then
      c = state_of(kind, keys, first, args, now, text, any and call('EXISTS', keys[first + 3]) == 1)
    else
      c = nil
    end
    local releases = verb == 'release' or verb == 'withdraw'
    local more = c and releases and lock == next_lock and (args[at] == 'release' or args[at] == 'withdraw')
    local status, at_end, fence, ahead, found, known, failure =
      run_one(c, kind, keys, first, args, now, verb, text, at, opened, more, freed)
    full, has_run = full or failure, has_run or not failure
    -- Other errors end the call.
    if failure and not state.is_full(failure) then
      full, has_run = failure, false
      break
    end
    local heard, usual_end, usual_fence = known and known.heard, usual(kind, args, now, verb)
    is_usual = is_usual and status == 1 and at_end == usual_end and fence == usual_fence and not (heard or found)
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = status, at_end, fence
    reply[filled + 4], reply[filled + 5] = ahead, heard or 0
    filled = filled + 5
    if kind.outcome then
      filled = filled + 1
      reply[filled] = found or 0
    end
    if not releases then at = at + takes end
  end
  if freed[1] then call('DEL', unpack(freed)) end
  if full and not has_run then return full end
  return is_usual and now or reply
end

function operations.leases(keys, args)
  local kind = kinds[args[2]]
  local serves = #keys == kind.keys and lone or many
  return serves(kind, keys, args, 7 + kind.shared)
end
