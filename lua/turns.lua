-- turns: the order of the waiters for permits: by classes and their aging, by flows (see flows), and newest first. The
-- state has `head`, the waiter that `permits.head` returned last: its token, score, whether other ranks have waiters,
-- and flows of its rank.

-- Records that a rank was served ('XX'), or that it got its first waiter ('CH'); or for `n`, its first waiter without a
-- flow.
local function stamp(c, option, name)
  call('ZADD', c.mark, option, format('%d', lift + c.now), name)
end

-- Returns the first head of a flow in the rank that starts at `from`, and its score.
local function first_head(c, from)
  local above = format('(%d', from + flows.lines)
  return call('ZRANGE', c.queue, format('%d', from + plain), above, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
end

-- Returns the rank that is served before this one now because it has waited for too long, if there is one.
function permits.due(c, rank)
  local names, due, since = {}, nil, nil
  for other = rank + 1, permits.counts do names[#names + 1] = 't' .. other end
  if #names == 0 then return nil end
  local after = settings.aging_of(c)
  for i, from in ipairs(call('ZMSCORE', c.mark, unpack(names))) do
    from = from and from - lift
    -- A time ahead of the clock is from before the clock was set back.
    local is_late = from and (from > c.now or from + after <= c.now) and (not since or from < since)
    if is_late and queue.first(c, rank + i)[1] then
      due, since = rank + i, from
    elseif not from and queue.first(c, rank + i)[1] then
      stamp(c, 'NX', 't' .. rank + i) -- it was evicted
    end
  end
  return due
end

-- Returns whether the newest waiter without a flow of a rank is served first. `from`: see `n` in flows.
local function is_newest_first(c, from)
  local after = settings.newest(c)
  return after > 0 and from and from <= lift + c.now and from + after <= lift + c.now
end

-- Returns the first waiter without a flow of a rank, or the newest one.
local function first_other(c, rank, first)
  if settings.newest(c) == 0 then return first end
  local from = number(call('ZSCORE', c.mark, 'n' .. rank) or nil)
  -- It was evicted, or is from before the clock was set back.
  if not from or from > lift + c.now then stamp(c, 'CH', 'n' .. rank) end
  if not is_newest_first(c, from) then return first end
  -- The first one is dropped if it stopped sending heartbeats: it might never be served.
  local beat = number(call('ZSCORE', c.beats, first[1]) or 0)
  local newest = beat > c.now and beat < lift and queue.last(c, rank) or first
  return newest[1] and newest or first
end

-- Returns the highest score of the waiters that were not put behind all ranks.
local function last_score(c, rank)
  local last = number(call('ZRANGE', c.queue, -1, -1, 'WITHSCORES')[2])
  if rank == 15 or last < queue.aside then return last end
  local below = format('(%d', queue.aside)
  return number(call('ZRANGE', c.queue, below, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2])
end

-- Returns the waiter that is served first, nothing, and its rank.
function permits.head(c)
  c.head = nil
  local first = call('ZRANGE', c.queue, 0, 0, 'WITHSCORES')
  if not first[1] then
    attempt('ZREMRANGEBYSCORE', c.mark, '-inf', '+inf') -- the next waiter starts afresh
    return
  end
  local rank = floor(first[2] / ranks)
  local last = last_score(c, rank)
  local is_several = last >= (rank + 1) * ranks
  local due = is_several and rank <= permits.counts and permits.due(c, rank)
  if due then rank, first = due, queue.first(c, due) end
  local from, flow = rank * ranks, nil
  if rank <= permits.counts and first[2] % ranks < plain then
    if last >= from + plain then flow = first_head(c, from) end
    -- `others` may restore evicted data.
    if flow and flow[1] and flow[2] - plain < flows.others(c, rank) then first = flow end
    if first ~= flow then first = first_other(c, rank, first) end
  end
  c.head = {text = first[1], score = number(first[2]), is_several = is_several, flows = flow and flow[1]}
  return first[1], nil, rank
end

-- Returns whether the keys must be kept for longer, the score of a new waiter with a flow, and how many waiters may be
-- served before it, if that is requested and differs from the order of arrival.
function permits.line_up(c, text, rank, placed)
  if rank > permits.counts then return end
  local of = settings.order(text)
  if of.flow then
    local is_first = not queue.first(c, rank)[1]
    local score, begins, place = flows.line_up(c, text, of, rank, placed)
    if is_first then stamp(c, 'CH', 't' .. rank) end
    return begins or is_first, score, place
  end
  if not placed or settings.newest(c) == 0 or not queue.last(c, rank)[1] then return end
  local is_first = is_newest_first(c, number(call('ZSCORE', c.mark, 'n' .. rank) or nil))
  return nil, nil, is_first and (rank > 0 and queue.ahead(c, rank - 1) or 0) or nil
end

-- A rank gets its first waiter without a flow.
function permits.starts(c, rank)
  if rank > permits.counts then return end
  stamp(c, 'CH', 'n' .. rank)
  if not queue.first(c, rank)[1] then stamp(c, 'CH', 't' .. rank) end
end

-- Returns whether a waiter must be removed by `drop`.
function permits.is_ordered(text)
  return settings.order(text).flow
end

-- Removes a waiter from the queue. `granted`: it is granted a lease.
function permits.drop(c, text, granted)
  local of, at = settings.order(text), c.head
  at, c.head = at and at.text == text and at or nil, nil
  local score = at and at.score or of.flow and number(call('ZSCORE', c.queue, text) or nil)
  call('ZREM', c.queue, text)
  if not score then return end
  local rank, within = floor(score / ranks), score % ranks
  if rank > permits.counts then return end
  if granted and at then
    local _, are_used = settings.aging_of(c)
    if are_used or at.is_several then stamp(c, 'XX', 't' .. rank) end
  end
  if of.flow and within >= flows.lines then
    flows.leave(c, of, rank)
  elseif of.flow and within >= plain then
    flows.drop(c, text, of, rank, score, granted)
  elseif granted and at and at.flows then
    flows.serve_other(c, text, rank)
  end
end

-- Returns the last waiter of the longest line of a rank, for a waiter whose line is empty. The longest line has at
-- least two waiters.
function permits.longest(c, text, rank)
  local of, from = settings.order(text), rank * ranks
  if rank > permits.counts then return nil end
  local others = call('ZCOUNT', c.queue, format('%d', from), format('(%d', from + plain))
  if of.flow and flows.waits(c, of, rank) or not of.flow and others > 0 then return nil end
  local length, last = flows.longest(c, rank)
  if others > 1 and others >= length then return queue.last(c, rank)[1] end
  return length > 1 and last or nil
end
