-- turns: who of the waiters for permits has its turn: by classes and their aging, by flows (see lib/flows), and newest first.
local head -- the waiter that `head` returned last: its token, score, whether other ranks wait, and flows of its rank

local permits_more = kind.more
function kind.more()
  permits_more()
  local floor, format = math.floor, string.format

  -- Records that a rank was served ('XX'), or that it got its first waiter ('CH'); or for `n`, that it has waiters without a
  -- flow.
  local function stamp(option, name)
    call('ZADD', mark, option, format('%d', lift + now), name)
  end

  -- Returns the first head of a rank that begins there, and its score.
  local function first_head(from)
    local above = format('(%d', from + lines)
    return call('ZRANGE', queue, format('%d', from + plain), above, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  end

  -- Returns the rank above this one that is served before it now, if one has waited for too long.
  function kind.due(rank)
    local names, due, since = {}, nil, nil
    for other = rank + 1, kind.counts do names[#names + 1] = 't' .. other end
    if #names == 0 then return nil end
    local after = aging()
    for i, from in ipairs(call('ZMSCORE', mark, unpack(names))) do
      from = from and from - lift
      -- A time ahead of the clock is from before the clock was set back.
      if from and (from > now or from + after <= now) and (not since or from < since) and lease.edge(rank + i)[1] then
        due, since = rank + i, from
      elseif not from and lease.edge(rank + i)[1] then
        stamp('NX', 't' .. rank + i) -- it was evicted
      end
    end
    return due
  end

  -- Returns whether the newest waiter without a flow of a rank is served first. `from`: see `n` in lib/flows.
  local function is_newest_first(from)
    local after = settings().rules[3] or 0
    return after > 0 and from and from <= lift + now and from + after <= lift + now
  end

  -- Returns the first waiter without a flow of a rank, or the newest one.
  local function first_other(rank, first)
    if (settings().rules[3] or 0) == 0 then return first end
    local from = tonumber(call('ZSCORE', mark, 'n' .. rank))
    -- It was evicted, or is from before the clock was set back.
    if not from or from > lift + now then stamp('CH', 'n' .. rank) end
    if not is_newest_first(from) then return first end
    -- The first one is dropped if it stopped sending heartbeats: its turn may never come.
    local beat = tonumber(call('ZSCORE', beats, first[1]) or 0)
    local newest = beat > now and beat < lift and lease.edge(rank, true) or first
    return newest[1] and newest or first
  end

  -- Returns the waiter that is served first, nothing, and its rank.
  function kind.head()
    head = nil
    local first = call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    if not first[1] then
      redis.pcall('ZREMRANGEBYSCORE', mark, '-inf', '+inf') -- the next waiter begins anew
      return
    end
    local rank = floor(first[2] / ranks)
    local last = tonumber(call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2])
    if rank < 15 and last >= 15 * ranks then -- it waits behind all ranks, see lib/queue
      local below = format('(%d', 15 * ranks)
      last = tonumber(call('ZRANGE', queue, below, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2])
    end
    local is_several = last >= (rank + 1) * ranks
    local due = is_several and rank <= kind.counts and kind.due(rank)
    if due then rank, first = due, lease.edge(due) end
    local from, flow = rank * ranks, nil
    if rank <= kind.counts and first[2] % ranks < plain then
      if last >= from + plain then flow = first_head(from) end
      if flow and flow[1] then
        if not flows then new_flows() end
        -- `others` may bring back what was evicted.
        if flow[2] - plain < flows.others(rank) then first = flow end
      end
      if first ~= flow then first = first_other(rank, first) end
    end
    head = {token = first[1], score = tonumber(first[2]), is_several = is_several, flows = flow and flow[1]}
    return first[1], nil, rank
  end

  -- Returns whether the keys have to be kept for longer, the score of a new waiter with a flow, and how many waiters may be
  -- served
  -- before it, if that is asked for, and not as in the order of arrival.
  function kind.line_up(token, rank, placed)
    if rank > kind.counts then return end
    local of = order(token)
    if of.flow then
      if not flows then new_flows() end
      local is_first = not lease.edge(rank)[1]
      local score, begins, place = flows.line_up(token, of, rank, placed)
      if is_first then stamp('CH', 't' .. rank) end
      return begins or is_first, score, place
    end
    if not placed or (settings().rules[3] or 0) == 0 or not lease.edge(rank, true)[1] then return end
    local is_first = is_newest_first(tonumber(call('ZSCORE', mark, 'n' .. rank)))
    return nil, nil, is_first and (rank > 0 and lease.ahead(rank - 1) or 0) or nil
  end

  -- A rank gets its first waiter without a flow.
  function kind.starts(rank)
    if rank > kind.counts then return end
    stamp('CH', 'n' .. rank)
    if not lease.edge(rank)[1] then stamp('CH', 't' .. rank) end
  end

  -- Returns whether a waiter has to leave by `drop`.
  function kind.is_ordered(token)
    return order(token).flow
  end

  -- Removes a waiter from the queue. `granted`: it is granted a lease.
  function kind.drop(token, granted)
    local of, at = order(token), head and head.token == token and head or nil
    head = nil
    local score = at and at.score or of.flow and tonumber(call('ZSCORE', queue, token))
    call('ZREM', queue, token)
    if not score then return end
    local rank, within = floor(score / ranks), score % ranks
    if rank > kind.counts then return end
    if granted and at then
      local _, are_used = aging()
      if are_used or at.is_several then stamp('XX', 't' .. rank) end
    end
    if of.flow and within >= lines then
      if not flows then new_flows() end
      flows.leave(of, rank)
    elseif of.flow and within >= plain then
      if not flows then new_flows() end
      flows.drop(token, of, rank, score, granted)
    elseif granted and at and at.flows then
      flows.serve_other(token, rank)
    end
  end

  -- Returns the last waiter of the longest line of a rank, for one whose line is empty: one of two or more.
  function kind.longest(token, rank)
    local of, from = order(token), rank * ranks
    if rank > kind.counts then return nil end
    if not flows then new_flows() end
    local others = call('ZCOUNT', queue, format('%d', from), format('(%d', from + plain))
    if of.flow and flows.waits(of, rank) or not of.flow and others > 0 then return nil end
    local length, last = flows.longest(rank)
    if others > 1 and others >= length then return lease.edge(rank, true)[1] end
    return length > 1 and last or nil
  end
end
