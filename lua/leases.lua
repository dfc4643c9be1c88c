-- leases: acquires a lease, or takes a place in the queue for one.
-- Arguments, from `kind.ttl` on: the ttl of the lease (µs); the same in ms, rounded up; 32 times the maximum number of
-- waiters in the queue (max_waiters; 0: do not wait), plus the rank: waiters of lower ranks are served first; plus 16:
-- the returned place in the queue follows the order in which waiters are served. Without it, the place follows the
-- order of arrival.
-- The state has, since free leases were granted: `length`, the number of waiters; `before`, how many of them are ahead
-- of this rank; `ends`, when the next lease ends, if known; `settled`, whether none has become free since. `owed`:
-- whether a lease was released in this call, and is not granted yet.

-- Grants free leases, if there are waiters.
function leases.settle(c)
  if c.waiting then grants.serve(c) end
  c.length, c.before, c.ends, c.settled = nil, nil, nil, not c.holders.turns
end

-- Returns the ttl of the lease, max_waiters, the rank, and whether the place follows the order of service.
local function terms(c)
  local args, ttl = c.args, c.kind.ttl
  local most = args[ttl + 2]
  local rank = most % 32
  return c.now + args[ttl], floor(most / 32), rank % 16, rank >= 16
end

-- Adds a token to the queue. `entered`: its heartbeat is already stored.
local function wait(c, text, told, entered)
  local holders, _, _, rank, placed = c.holders, terms(c)
  if c.before == 0 and holders.tell_first then holders.tell_first(c, told) end
  local place = queue.line_up(c, text, rank, placed, entered)
  c.waiting, c.ends = true, c.ends or holders.soonest(c)
  c.length, c.before = c.length + (rank <= leases.counted(c, rank) and 1 or 0), c.before + 1
  c.settled = c.settled and c.before > 1 -- the first one of a rank may change which rank is due
  local at_end, ahead = c.ends, placed and place or c.before - 1
  -- It may be served before a waiter of another flow or of a lower class that does not fit.
  if holders.drop and holders.fits(c, text, rank) then
    leases.settle(c)
    local held = holders.expires(c, text)
    if held then return 1, held, holders.fence(c), 0 end
  end
  return 2, at_end, 0, ahead
end

-- Returns the highest rank whose waiters count for max_waiters.
function leases.counted(c, rank)
  local holders = c.holders
  return holders.classes and min(rank, holders.counts) or holders.counts
end

-- Counts the waiters, after all free leases were granted.
local function count(c, rank, most)
  local counted = leases.counted(c, rank)
  c.length = queue.ahead(c, counted)
  if c.length > 0 and c.length >= most then
    queue.drop_dead(c)
    leases.settle(c)
    c.length = queue.ahead(c, counted)
  end
  c.before = (c.holders.one or counted == rank) and c.length or queue.ahead(c, rank)
end

-- Finds a token among the waiters. Returns the four numbers of the reply, if it is already there.
local function look_up(c, text)
  local holders = c.holders
  local waits, withdrawn = queue.look_up(c, text)
  if withdrawn then return -2, 0, 0, 0 end
  if not c.settled then leases.settle(c) end
  local held = waits and holders.expires(c, text)
  if held then return 1, held, holders.fence(c), 0 end
  local place = waits and queue.place(c, text)
  if place then return 2, holders.soonest(c), 0, place end
end

-- Acquires a lease that may not be free. `done`: see `look` in exact. `told`: the caller's settings, see settings.
function leases.acquire_busy(c, text, done, told)
  local holders, expiry, most, rank = c.holders, terms(c)
  queue.open(c)
  if holders.sweep then holders.sweep(c) end
  local held = holders.expires(c, text)
  if held then return 1, held, holders.fence(c), 0 end
  if done then return 3, 0, 0, 0 end
  local before = c.before
  if holders.tell and holders.tell(c, told, c.waiting, before and before > 0) then
    c.length, c.before, c.ends, c.settled, before = nil, nil, nil, false, nil
  end
  local is_full = before and c.length >= most
  local is_closed = holders.is_closed and holders.is_closed(c, text, rank)
  -- If callers send settings, those of the first waiter of a queue may close it: the waiter is checked before the next
  -- one is added.
  local is_next = before and before > 0 and (c.settled or not holders.tell)
  if is_next and not (is_full or is_closed) and done == nil and queue.enter(c, text) then
    return wait(c, text, told, true)
  end
  if not c.waiting then
    c.length, c.before = 0, 0
  else
    local status, at_end, fence, place = look_up(c, text)
    if status then return status, at_end, fence, place end
    count(c, rank, most)
  end
  if c.before == 0 and holders.fits(c, text, rank) and not (c.waiting and holders.due and holders.due(c, rank)) then
    c.ends = nil
    return 1, expiry, holders.hold(c, text, expiry), 0
  end
  if done == false then return 3, 0, 0, 0 end
  if is_closed then return 0, 0, 0, c.before end
  if c.length >= most then
    local has_room = most > 0 and c.waiting and grants.make_room(c, text, rank)
    if not has_room then return 0, holders.soonest(c), 0, c.before end
    c.length, c.before = c.length - 1, c.before - 1
  end
  return wait(c, text, told)
end

-- Releases the lease of a token, or its place in the queue. `withdraw`: later acquires of the token are refused,
-- including copies of an acquire that already ran. `more`: the next run is a release of the same key, which then grants
-- for both.
function leases.release(c, text, verb, more)
  local forget = c.holders.forget
  local was = forget(c, c.lock, c.mark, text, c.now) and 1 or 0
  if was == 0 and c.owed then
    leases.settle(c)
    was = forget(c, c.lock, c.mark, text, c.now) and 1 or 0
  end
  if was == 0 and c.waiting and queue.leave(c, text) then was = 2 end
  if verb == 'withdraw' then
    c.waiting = true
    queue.open(c)
    queue.leave(c, text) -- a waiter may carry the value of the holder
    queue.bury(c, text)
  end
  c.owed, c.settled = more, false
  if not more then leases.settle(c) end
  return was, 0, 0, 0
end
