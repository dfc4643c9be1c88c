-- turns: who of the waiters for permits has its turn: by flows (see lib/flows), by the aging of classes, and newest first.
-- The functions for tokens with an aging, or that may be served newest first. They are created when one has.
local by
local function new_order()
  by = {}
  local format, floor = string.format, math.floor

  local function stamp(option, name)
    return call('ZADD', mark, option, format('%d', lift + now), name) == 1
  end

  -- Records that a rank was served ('XX'), or got a waiter: its first ('CH') or another one ('NX').
  function by.aged(rank, option)
    return rank > 0 and rank <= kind.counts and stamp(option, 't' .. rank)
  end

  -- Since when a rank has waiters without a flow, plus 2^52, if that is known.
  local function since(rank)
    return tonumber(call('ZSCORE', mark, 'n' .. rank) or nil)
  end

  -- Returns whether the newest waiter is served before the first one of a rank. `from`: see `since`.
  local function newest_first(token, from)
    local after = order(token).newest
    return after and from and from + after <= lift + now
  end

  -- Records since when a rank has waiters without a flow, before one joins them that may be served newest first. Returns
  -- whether that was not known, and if the newest is served first now, how many waiters are before it. Waiters without this
  -- setting record nothing. So what is known only holds if one that has it was there: the first or the last is looked at.
  local function joins(rank)
    local first = lease.edge(rank)
    local token = first[1] and first[2] % ranks < plain and first[1]
    local goes_on = token and (order(token).newest or order(lease.edge(rank, true)[1]).newest)
    local from = goes_on and since(rank)
    if not from or from > lift + now then
      stamp('CH', 'n' .. rank)
      return true
    end
    return false, newest_first(token, from) and (rank > 0 and lease.ahead(rank - 1) or 0) or nil
  end

  -- Returns whether the keys have to be kept for longer, and how many waiters are served before it, if the newest is first.
  function by.line_up(of, rank)
    local starts = of.aging and not lease.edge(rank)[1]
    local is_new = of.aging and by.aged(rank, starts and 'CH' or 'NX') or starts
    if not of.newest then return is_new end
    local begins, place = joins(rank)
    return is_new or begins, place
  end

  -- Returns the rank above this one that is served before it now, if one has waited for too long.
  function by.due(rank, aging)
    local all = aging and call('ZRANGE', mark, lift, '+inf', 'BYSCORE', 'WITHSCORES') or {}
    for i = 1, #all, 2 do
      local from, other = all[i + 1] - lift, tonumber(string.match(all[i], '^t([1-7])$'))
      -- A time ahead of the clock is from before the clock was set back.
      if other and other > rank and (from > now or from + aging <= now) and lease.edge(other)[1] then return other end
    end
  end

  -- Returns who is served first, and its score. `lowest`: the first of the lowest rank, and its score.
  function by.head(lowest)
    local rank = floor(lowest[2] / ranks)
    local other = by.due(rank, order(lowest[1]).aging)
    if other then
      lowest, rank = lease.edge(other), other
      if lowest[2] % ranks >= lines then
        if not flows then new_flows() end
        flows.raise(rank)
        lowest = lease.edge(rank)
      end
    end
    if not (lowest[2] % ranks < plain and newest_first(lowest[1], since(rank))) then return lowest end
    -- The first one is dropped if it stopped sending heartbeats: its turn may never come.
    local beat = tonumber(call('ZSCORE', beats, lowest[1]) or 0)
    local newest = beat > now and beat < lift and lease.edge(rank, true) or lowest
    return newest[1] and newest or lowest
  end
end

local permits_more = kind.more
function kind.more()
  permits_more()
  local floor, format = math.floor, string.format

  function kind.line_up(token, rank, placed)
    local of, is_new, begins, score, place = order(token), nil, nil, nil, nil
    if of == none then return end
    head = nil
    if of.aging or of.newest then
      if not by then new_order() end
      is_new, place = by.line_up(of, rank)
    end
    if of.flow then
      local first = rank * ranks + lines + of.flow * width
      local above = first + width
      local from, to = format('(%d', above), format('%d', first)
      local last = call('ZRANGE', queue, from, to, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
      if last and not placed and last + 1 < above then return is_new, last + 1 end -- without more functions
      if not flows then new_flows() end
      begins, score, place = flows.line_up(of, rank, placed, last)
    end
    return is_new or begins, score, place
  end

  function kind.due(token, rank)
    local aging = order(token).aging
    if not aging then return end
    if not by then new_order() end
    return by.due(rank, aging)
  end

  -- `lowest`: the first waiter and its score, if known since the one that was returned before has left. Returns the same for
  -- the next call.
  function kind.head(lowest)
    if moved and lowest then
      local ahead = moved[2] - lowest[2]
      local is_first = ahead < 0 or ahead == 0 and moved[1] < lowest[1]
      lowest = is_first and {moved[1], moved[2], unpack(lowest, 1, 2)} or {lowest[1], lowest[2]}
    end
    if moved == false or not lowest then lowest = call('ZRANGE', queue, 0, 1, 'WITHSCORES') end
    moved, head = nil, nil
    if not lowest[1] then return end
    if lowest[2] % ranks >= lines then
      if not flows then new_flows() end
      flows.raise(floor(lowest[2] / ranks))
      lowest = call('ZRANGE', queue, 0, 1, 'WITHSCORES')
    end
    head = lowest
    if string.byte(lowest[1], -1) ~= 46 then -- with '.' at its end, it has neither an aging nor is the newest first
      local of = order(lowest[1])
      if of.aging or of.newest then
        if not by then new_order() end
        head = by.head(lowest)
        if head[1] ~= lowest[1] then return head[1], {lowest[1], lowest[2]} end
      end
    end
    -- Who is behind a head may be the next head.
    return lowest[1], lowest[4] and lowest[4] % ranks < lines and {lowest[3], lowest[4]} or nil
  end

  -- Returns whether a waiter has to leave by `drop`.
  function kind.is_ordered(token)
    return order(token).flow
  end

  -- Removes a waiter from the queue. `granted`: it is granted a lease.
  function kind.drop(token, granted)
    local of, score = order(token), nil
    if of.flow or granted and of.aging then
      score = tonumber(head and head[1] == token and head[2] or call('ZSCORE', queue, token) or nil)
    end
    head = nil
    call('ZREM', queue, token)
    if not score then return end
    local rank, within = floor(score / ranks), score % ranks
    if granted and of.aging then
      if not by then new_order() end
      by.aged(rank, 'XX')
    end
    -- Who is behind the head of its flow changes nothing.
    if not of.flow or within < plain or within >= lines then return end
    local from, tag, reached = rank * ranks, score - plain, nil
    local line = (from + lines) / width + of.flow
    local first, above = format('%d', line * width), format('(%d', (line + 1) * width)
    local next, name = call('ZRANGE', queue, first, above, 'BYSCORE', 'LIMIT', 0, 1)[1], format('%d', line)
    if granted then
      -- No tag is below the virtual time, but for a fresh one. If another version has written a lower one, the virtual time
      -- steps back once, which costs little.
      reached = tag + tag % 2
      tag = reached + of.cost
    end
    if not flows and not (granted and next and tag < from + plain) then new_flows() end
    moved = nil
    if granted then
      if tag >= from + plain then tag, reached = flows.fit(rank, tag, reached) end
      local idle = next and 0 or lines
      local added = call('ZADD', mark, format('%d', reached), 'v' .. rank, format('%d', tag + idle), name)
      if added == 2 then -- it was evicted
        if not flows then new_flows() end
        flows.restore(rank)
      end
    else
      tag, reached = flows.leave(of, rank, tag, next, name)
    end
    if next then
      local text = format('%d', tag + plain)
      call('ZADD', queue, text, next)
      if moved == nil then moved = {next, text} end
    else
      flows.pass(rank, reached)
    end
    -- Who waits for too short a time for a heartbeat finds lost heads, too.
    if granted and floor(tag / rare) > floor(reached / rare) then
      if not flows then new_flows() end
      flows.find(rank)
      moved = false
    end
  end

  function kind.touch(tokens)
    for _, token in ipairs(tokens) do
      if order(token).flow then
        if not flows then new_flows() end
        return flows.touch(tokens)
      end
    end
  end
end
