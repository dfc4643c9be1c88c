-- runs: acquires and releases leases and places in the queue, and grants what becomes free. Stores the outcomes of leases.
-- Keys       see state, per run. The runs of one key are adjacent
-- Arguments  see queue; those of the kind for all runs; see leases, if there is an acquire or bypass; then per run:
--            the verb: `acquire`; `bypass`: acquire in spite of outcomes of earlier leases; `release`; `withdraw`:
--            release, and refuse an acquire that runs later; `complete`: store the outcome, and release;
--            the token; for acquire and bypass, the arguments of `look`; for complete, those of `enter`
-- Returns    now (µs); then per run four numbers, the grants to this process (0, or a list of messages, see grants), and
--            for kinds with outcomes the result of `look`, or why nothing was stored or released (0: nothing)
--            acquire: 1, expiry (µs), fence, 0: it holds
--                     2 (queued) or 0 (refused), when the next lease ends (µs, 0: unknown), 0, how many are ahead of it
--                     3: the work is done; -2: it was withdrawn before; -3: the server is out of memory; -1: a key is of
--                     another type
--            release: 1: it held; 2: it waited; 0: neither; -1: a key is of another type
--            complete: 1: it held; 2: another holds; 0: neither; -1: a key is of another type; then how full the filter is
--                      now, for kinds that have one, otherwise 0
--            If all runs had the usual result, the reply is now alone: each acquire holds, for its ttl, with the usual
--            fence; each release and complete was by the holder, and had no further results. Otherwise a run with the
--            usual result may be 4 and zeros. The time is 0 if it was not read: for a lone release of a string lock
-- Writes     leases, places, tombstones, the mark, the outcome; all with a ttl

-- The steps of the verbs: step(c, kind, keys, first, args, at, now, batch). `c`: the state, if there may be waiters, or
-- data of the key is already known; `at`: the argument with the verb; `batch`: the data that the runs of a call share:
-- `freed`, the locks that are deleted at its end; `opened`, filters that the outcome has opened; and whether the next
-- run is one `more` release of the same key. A step returns nothing for the usual result; otherwise the four numbers of
-- the reply, the result of `look`, and the state if there is one.
local steps = {}

function steps.acquire(c, kind, keys, first, args, at, now, batch)
  local text, outcome, found, done = args[at + 1], kind.outcome, nil, nil
  if outcome then found, done = outcome.look(keys, first, args, at + 2, now, args[at] == 'bypass', batch) end
  if not (done or c and c.waiting) then
    local ttl = kind.ttl
    local fence = kind.holders.take(c, kind, keys[first], keys[first + 1], text, now, args[ttl], args[ttl + 1])
    if fence and not found and fence == (kind.zero_fence and 0 or now) then return nil end
    if fence then return 1, now + args[ttl], fence, 0, found end
  end
  c = c or state.of(kind, keys, first, args, now, false, text)
  local status, at_end, fence, ahead = leases.acquire_busy(c, text, done, args[at + 2])
  return status, at_end, fence, ahead, found, c
end

steps.bypass = steps.acquire

-- Releases a lease, or leaves the queue.
function steps.release(c, kind, keys, first, args, at, now, batch)
  local text, verb = args[at + 1], args[at]
  if not c and verb == 'release' then
    if kind.holders.forget(nil, keys[first], keys[first + 1], text, now, batch) then return nil end
    return 0, 0, 0, 0
  end
  c = c or state.of(kind, keys, first, args, now, false, text)
  local was = leases.release(c, text, verb, batch and batch.more)
  if was == 1 and not c.heard then return nil end
  return was, 0, 0, 0, nil, c
end

steps.withdraw = steps.release

-- Stores the outcome of a lease, releases the lease, and notifies the waiters to acquire again.
local function complete(c, kind, keys, first, args, at, now, batch)
  local lock, text = keys[first], args[at + 1]
  local value = mutex.read(lock) or false
  local holds = value == text
  local problem, entered, level = kind.outcome.enter(keys, first, args, at + 2, now, holds, c and c.waiting, batch)
  if problem then return 0, 0, 0, 0, problem end
  if holds then value = mutex.unlock(lock, not c and batch) end
  if c then
    c.value = value
    if entered and c.waiting then grants.dismiss(c, entered) end
    c.length, c.before, c.ends, c.settled = nil, nil, nil, false
  end
  if holds and not (level or c and c.heard) then return nil end
  return holds and 1 or value and 2 or 0, level or 0, 0, 0, nil, c
end

-- The same, even if the server is out of memory: the deleted claim is larger than the record of an item. Without
-- functions, such a server refuses writes that need memory unless another write comes first; the first write here
-- removes nothing.
function steps.complete(c, kind, keys, first, args, at, now, batch)
  local done, status, level, _, _, found = protected(complete, c, kind, keys, first, args, at, now, batch)
  if done then return status, level, 0, 0, found, c end
  if not (state.is_full(status) and kind.outcome.is_small(args, at + 2)) then error(status, 0) end
  attempt('ZREM', keys[first + 3], '')
  return complete(c, kind, keys, first, args, at, now, batch)
end

-- Returns the state of a key that may have waiters, or whose data the next run will use.
local function state_of(kind, keys, first, args, now, text, waiting, kept)
  local c = state.of(kind, keys, first, args, now, waiting, text)
  c.kept = kept
  if waiting then queue.open(c) end
  return c
end

-- Serves a call of one run.
local function lone(kind, keys, args, at)
  local verb, kept, c = args[at], call('PTTL', keys[4]), nil
  local now = (kept ~= -2 or verb ~= 'release' or kind.holders.timed) and clock() or 0
  if kept ~= -2 then c = state_of(kind, keys, 1, args, now, args[at + 1], true, kept) end
  local status, at_end, fence, ahead, found, known = steps[verb](c, kind, keys, 1, args, at, now)
  if not status then return now end
  return {now, status, at_end, fence, ahead, known and known.heard or 0, kind.outcome and (found or 0) or nil}
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

-- Adds the result of a run to the reply for several runs. The reply starts with the first run without the usual result.
local function add(reply, kind, nth, status, at_end, fence, ahead, found, known)
  local fields = kind.outcome and 6 or 5
  local at = 1 + nth * fields
  for i = #reply, at - 1 do reply[i + 1] = (i - 1) % fields == 0 and 4 or 0 end
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = status or 4, at_end or 0, fence or 0, ahead or 0
  reply[at + 5] = known and known.heard or 0
  if fields == 6 then reply[at + 6] = found or 0 end
end

-- Serves a call of several runs.
local function many(kind, keys, args, at)
  local width, looks = kind.keys, kind.hashes and number(args[kind.hashes]) or kind.looks
  local any, now, batch = any_waits(keys, width), clock(), {freed = {}, opened = {}}
  local reply, c, full, has_run, nth = nil, nil, nil, false, 0
  for first = 1, #keys, width do
    local verb, text, lock, next_lock = args[at], args[at + 1], keys[first], keys[first + width]
    if c and c.lock == lock then
      c.asker, c.heard, c.known = text, nil, nil
    elseif any or lock == next_lock then
      c = state_of(kind, keys, first, args, now, text, any and call('EXISTS', keys[first + 3]) == 1)
    else
      c = nil
    end
    local step, after = steps[verb], at + 2
    local releases = step == steps.release
    if not releases then after = after + (step == steps.complete and kind.enters or looks) end
    batch.more = c and releases and lock == next_lock and steps[args[after]] == step
    local done, status, at_end, fence, ahead, found, known =
      protected(step, c, kind, keys, first, args, at, now, batch)
    if done then
      has_run = true
    else
      local failure = state.failure(status)
      full, has_run = full or failure, has_run or not failure
      -- Other errors end the call.
      if failure and not state.is_full(failure) then
        full, has_run = failure, false
        break
      end
      status, at_end, fence, ahead, found, known = failure and -3 or -1, 0, 0, 0, nil, c
    end
    if status or reply then
      reply = reply or {now}
      add(reply, kind, nth, status, at_end, fence, ahead, found, known)
    end
    at, nth = after, nth + 1
  end
  if batch.freed[1] then call('DEL', unpack(batch.freed)) end
  if full and not has_run then return full end
  return reply or now
end

function operations.leases(keys, args)
  local kind = kinds[args[2]]
  local serves, at = #keys == kind.keys and lone or many, kind.ttl
  return serves(kind, keys, args, steps[args[at]] and at or at + 3)
end
