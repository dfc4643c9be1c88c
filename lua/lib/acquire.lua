-- acquire: takes a lease, or a place in the queue for one.
-- ARGV[2] is the ttl of the lease (µs), ARGV[3] the same in ms, rounded up. ARGV[4] is 32 times the most waiters in the
-- queue (max_waiters; 0: do not wait), plus the rank: waiters of lower ranks are served first. Plus 16: the place in the
-- queue is told in the order in which waiters are served. Without it, that is the order of arrival.
local expiry = now + ARGV[2]
local waiting -- whether the current key has waiters or tombstones
-- Set if any key is `waiting`, or not free. Waiters up to rank `counted` count.
local waiters, max_waiters, rank, placed, counted
-- Of the current key, since free leases were granted (nil before that): how many waiters there are, how many of
-- them are ahead of this rank, and when the next lease ends, if known.
local length, before, ends
local settled -- whether free leases of the current key were granted, and none has become free since

-- Grants free leases, if there are waiters.
local function settle()
  if waiting then waiters.grant() end
  length, before, ends, settled = nil, nil, nil, not kind.turns
end

local function queued(token, told, entered)
  if before == 0 and kind.tell_first then kind.tell_first(told) end
  local place = waiters.line_up(token, rank, placed, entered)
  waiting, ends = true, ends or kind.soonest()
  length, before = length + (rank <= counted and 1 or 0), before + 1
  settled = settled and before > 1 -- the first one of a rank may change which rank is due
  local at_end, ahead = ends, placed and place or before - 1
  -- It may come before one that does not fit, of another flow or of a lower class.
  if kind.drop and kind.fits(token, rank) then
    settle()
    local held = kind.expires(token)
    if held then return 1, held, kind.fence(), 0 end
  end
  return 2, at_end, 0, ahead
end

-- `at`: the first argument for `look` in ARGV, or what the caller tells (see lib/settings). Returns the four numbers of the
-- reply.
local function acquire(token, bypass, at)
  local done
  if kind.look then found, done = kind.look(bypass, 5, at) end
  if not (waiting or done) and kind.free(token) then return 1, expiry, kind.hold(token, expiry), 0 end
  if not max_waiters then
    waiters, max_waiters, rank = waiters or new_waiters(), math.floor(ARGV[4] / 32), ARGV[4] % 32
    rank, placed = rank % 16, rank >= 16
    counted = kind.classes and math.min(rank, kind.counts) or kind.counts
  end
  if kind.sweep then kind.sweep() end
  local held = kind.expires(token)
  if held then return 1, held, kind.fence(), 0 end
  if done then return 3, 0, 0, 0 end
  local told = kind.tell and ARGV[at]
  if told and kind.tell(told, waiting, before and before > 0) then
    length, before, ends, settled = nil, nil, nil, false
  end
  local is_full = before and length >= max_waiters
  local is_closed = kind.is_closed and kind.is_closed(token, rank)
  -- Where callers tell settings, those of the first waiter of a queue may close it: it is judged before the next one lines up.
  local is_next = before and before > 0 and (settled or not kind.tell)
  if is_next and not (is_full or is_closed) and done == nil and waiters.enter(token) then
    return queued(token, told, true)
  end
  if not waiting then
    length, before = 0, 0
  else
    local waits, withdrawn = waiters.look_up(token)
    if withdrawn then return -2, 0, 0, 0 end
    if not settled then settle() end
    held = waits and kind.expires(token)
    if held then return 1, held, kind.fence(), 0 end
    local place = waits and waiters.place(token)
    if place then return 2, kind.soonest(), 0, place end
    length = lease.ahead(counted)
    if length > 0 and length >= max_waiters then
      waiters.drop_dead()
      settle()
      length = lease.ahead(counted)
    end
    before = counted == rank and length or lease.ahead(rank)
  end
  if before == 0 and kind.fits(token, rank) and not (waiting and kind.due and kind.due(rank)) then
    ends = nil
    return 1, expiry, kind.hold(token, expiry), 0
  end
  if done == false then return 3, 0, 0, 0 end
  if is_closed then return 0, 0, 0, before end
  if length >= max_waiters then
    local has_room = max_waiters > 0 and waiting and waiters.make_room(token, rank)
    if not has_room then return 0, kind.soonest(), 0, before end
    length, before = length - 1, before - 1
  end
  return queued(token, told)
end
