-- flows: fair shares and classes among the waiters for permits, and newest first. The rank of a waiter is its class. Behind
-- its limit, a token has `/flow.cost.aging.newest`, in hexadecimal digits: the number of its flow and what the permit costs
-- that (both may be missing: then it is served before all flows of its rank, in the order of arrival), how long the waiters
-- of lower ranks may be served before it (µs; may be missing: for any time), and for how long there must have been waiters
-- without a flow in its rank, so that the newest of these is served first while it is the first of them (µs; may be missing,
-- with its dot: in the order of arrival).
-- Each flow has a tag: the virtual time at which it may be served next. The lowest tag of a rank is served first, and is its
-- virtual time from then on. What was served raises the tag of its flow by its cost (start-time fair queueing, Goyal et al.
-- 1996). A flow that comes anew pays for its first waiter in advance, so that new flows are not served before all others. Its
-- tag is fresh until it is served: if that waiter goes away, it pays for the next one instead, or is forgotten. Virtual times
-- count halves of a cost. A fresh tag is odd, all others are even.
-- The first waiter of a flow is its head: its score is its rank times 2^49, plus 2^47, plus the tag. So the lowest score is
-- served first; of equal ones, the lowest token. The score of those behind it is its rank times 2^49, plus 2^48, plus its flow
-- times 2^26, plus a ticket: that without the ticket is the line of the flow.
-- The mark is a ZSET:
--   line    that score / 2^26 -> rank * 2^49 + tag. A flow without waiters: rank * 2^49 + 2^48 + tag. It is forgotten once the
--           virtual time has passed its tag
--   vR      the virtual time of rank R -> rank * 2^49 + tag
--   tR      for rank R -> 2^52 + when it was served last, or got its first waiter (µs)
--   nR      for rank R -> 2^52 + since when it has waiters without a flow (µs). Only valid while one of these may be served
--           newest first
local width, most = 67108864, 4398046511104 -- 2^26; 2^42: the highest cost, and the longest aging and `newest`
local lines, rare = 281474976710656, 131072 -- 2^48 (`plain` is 2^47); the virtual time between two looks for lost heads
local head -- the waiter that `head` returned last, and its score
local moved -- the one that has become the head of its flow since, and its score; false: other scores have changed, too

local none = {} -- the order of a token without one
local function order(token)
  local flow, cost, rest = string.match(token, '^[^/]*/[^/]*/[^/]*/(%x*)%.(%x*)%.(.*)$', 18)
  if not flow then return none end
  flow, cost = tonumber(flow, 16), tonumber(cost, 16)
  local of = flow and cost and {flow = math.min(flow, 4194303), cost = 2 * math.max(math.min(cost, most), 1)} or {}
  if rest == '' then return of end
  local aging, newest = string.match(rest, '^(%x*)%.?(%x*)$')
  if not aging then return none end
  aging, newest = tonumber(aging, 16), tonumber(newest, 16)
  of.aging, of.newest = aging and math.min(aging, most), not of.flow and newest and math.min(newest, most) or nil
  return of
end

-- The functions for what is rarer with flows. They are created when it comes.
local flows
local function new_flows()
  flows = {}
  local format, floor = string.format, math.floor

  local function whole(number)
    return format('%d', number)
  end

  -- Keeps the mark as long as the queue.
  local function keep()
    call('PEXPIRE', mark, math.ceil(ARGV[4] / 1000))
  end

  -- Brings back the virtual time of a rank and the tags of its heads, if Redis has evicted them. Returns how many heads there
  -- are, and the virtual time; nil: none.
  function flows.restore(rank)
    local from = rank * ranks
    local all = call('ZRANGE', queue, whole(from + plain), '(' .. whole(from + lines), 'BYSCORE', 'WITHSCORES')
    keep()
    if not all[1] then return 0 end
    local reached = all[2] - plain - all[2] % 2
    local tags = {whole(reached), 'v' .. rank}
    for i = 1, #all, 2 do
      local flow = order(all[i]).flow
      if flow then
        tags[#tags + 1], tags[#tags + 2] = whole(all[i + 1] - plain), whole((from + lines) / width + flow)
      end
    end
    for i = 1, #tags, 4000 do call('ZADD', mark, 'NX', unpack(tags, i, math.min(i + 3999, #tags))) end
    return #tags / 2 - 1, reached
  end

  -- Forgets the flows without waiters whose tag the virtual time has passed.
  function flows.pass(rank, reached)
    call('ZREMRANGEBYSCORE', mark, whole(rank * ranks + lines), '(' .. whole(reached + lines))
  end

  -- Returns a tag and the virtual time. All tags of the rank are lowered before this one would leave its range.
  function flows.fit(rank, tag, reached)
    local from = rank * ranks
    if tag < from + plain then return tag, reached end
    flows.pass(rank, reached)
    local by = reached - from - 2
    local function lower(zset, lowest, above)
      local all = call('ZRANGE', zset, whole(lowest), '(' .. whole(above), 'BYSCORE', 'WITHSCORES')
      -- A fresh tag may be one less than the virtual time.
      for i = 1, #all, 2 do call('ZADD', zset, whole(math.max(all[i + 1] - by, lowest)), all[i]) end
    end
    lower(mark, from, from + ranks)
    lower(queue, from + plain, from + lines)
    head, moved = nil, false
    return tag - by, from + 2
  end

  -- Returns the virtual time of a rank, as a score.
  local function served(rank)
    return tonumber(call('ZSCORE', mark, 'v' .. rank) or nil)
  end

  -- Returns the first waiter of a line behind the head.
  local function front(line)
    return call('ZRANGE', queue, whole(line * width), '(' .. whole((line + 1) * width), 'BYSCORE', 'LIMIT', 0, 1)[1]
  end

  -- Returns the head that is served first in the rank that begins there, and its score.
  local function first_head(from)
    local above = '(' .. whole(from + lines)
    return call('ZRANGE', queue, whole(from + plain), above, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  end

  -- Returns the ticket for a waiter behind the one with this score. Tickets begin again before they would leave the line.
  local function behind(line, last)
    if last + 1 < (line + 1) * width then return last + 1 end
    local all = call('ZRANGE', queue, whole(line * width), '(' .. whole((line + 1) * width), 'BYSCORE')
    for i, token in ipairs(all) do call('ZADD', queue, whole(line * width + i - 1), token) end
    return line * width + #all
  end

  -- Returns what `line_up` of a kind returns. `last`: the score of the last waiter of its line, if there is one.
  function flows.line_up(of, rank, placed, last)
    local from = rank * ranks
    local line, score, before = (from + lines) / width + of.flow, nil, nil
    if last then
      score = behind(line, tonumber(last))
      if not placed then return false, score end
      before = 1 + call('ZCOUNT', queue, whole(line * width), '(' .. whole((line + 1) * width))
    end
    local reached, begins = served(rank), false
    local leads = call('ZCOUNT', mark, whole(from), '(' .. whole(from + lines)) - (reached and 1 or 0)
    if not last and (leads == 0 or call('EXISTS', queue) == 0) then
      call('ZREMRANGEBYSCORE', mark, whole(from), '(' .. whole(from + ranks))
      begins, leads, reached = true, flows.restore(rank)
    end
    local tag = not last and tonumber(call('ZSCORE', mark, whole(line)) or nil) or -1
    if not last and tag >= from and tag < from + lines then
      score, before = line * width, 1
    elseif not last then
      reached, tag, before, leads = reached or from, tag - lines, 0, leads + 1
      if tag == reached then tag = tag + 1 end
      if tag < reached then tag = reached + of.cost - 1 end
      tag = flows.fit(rank, tag, reached)
      call('ZADD', mark, whole(tag), whole(line))
      score = tag + plain
    end
    if not placed then return begins, score end
    local lower = rank > 0 and lease.ahead(rank - 1) or 0
    return begins, score, math.min(lease.ahead(rank), lower + (before + 1) * math.max(leads, 1) - 1)
  end

  -- A head has left the queue without a lease, `next` is behind it. Returns the tag of its flow, and the virtual time.
  function flows.leave(of, rank, tag, next, line)
    local reached = served(rank) or rank * ranks
    local is_fresh, is_evicted = tag % 2 == 1, false
    if next and is_fresh then
      tag, reached = flows.fit(rank, math.max(tag - of.cost + (order(next).cost or 2), reached + 1), reached)
      is_evicted = call('ZADD', mark, whole(tag), line) == 1
    elseif is_fresh then
      call('ZREM', mark, line)
    elseif not next then
      is_evicted = call('ZADD', mark, whole(tag + lines), line) == 1
    end
    if is_evicted then flows.restore(rank) end
    return tag, reached
  end

  -- Makes the first waiter of a line its head.
  local function raise(rank, line, tag, token)
    local from = rank * ranks
    tag = math.max(from, math.min(tag, from + plain - 1))
    call('ZADD', queue, whole(tag + plain), token)
    if call('ZADD', mark, whole(tag), whole(line)) == 1 then keep() end
  end

  -- Finds the heads of a rank that has none: its flows were evicted, or a version wrote them that knows no heads.
  function flows.raise(rank)
    local from, above = rank * ranks + lines, '(' .. whole((rank + 1) * ranks)
    while true do
      local first = call('ZRANGE', queue, whole(from), above, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
      if not first[1] then return end
      local line = floor(first[2] / width)
      local tag = tonumber(call('ZSCORE', mark, whole(line)) or nil)
      raise(rank, line, tag or (served(rank) or rank * ranks) + (order(first[1]).cost or 2) - 1, first[1])
      from = (line + 1) * width
    end
  end

  -- Makes those heads that should be served before all heads of a rank: another version has left them behind. So the lowest
  -- tag of all is below those of the heads sooner or later.
  function flows.find(rank)
    local from, is_lost = rank * ranks
    repeat
      local two = call('ZRANGE', mark, whole(from), '(' .. whole(from + lines), 'BYSCORE', 'LIMIT', 0, 2, 'WITHSCORES')
      local at = two[1] == 'v' .. rank and 3 or 1
      local line, tag, first = string.match(two[at] or '', '^[1-9]%d*$'), tonumber(two[at + 1] or nil), first_head(from)
      is_lost = tag and not (first[1] and tag + plain >= tonumber(first[2]))
      local token = is_lost and line and front(tonumber(line))
      if token then
        raise(rank, tonumber(line), math.max(tag, served(rank) or tag), token)
      elseif is_lost then
        call('ZREM', mark, two[at]) -- its waiters were evicted, too; or it was forged
      end
    until not is_lost
  end

  -- Brings back tags, if Redis has evicted them, and heads.
  function flows.touch(tokens)
    local names, costs, in_rank, times = {}, {}, {}, {}
    for i, score in ipairs(call('ZMSCORE', queue, unpack(tokens))) do
      local of, rank, at = order(tokens[i]), floor((score or 0) / ranks), #names + 1
      if score and of.flow then
        names[at], costs[at] = whole((rank * ranks + lines) / width + of.flow), of.cost
        in_rank[at], times[rank] = rank, false
      end
    end
    for i, tag in ipairs(names[1] and call('ZMSCORE', mark, unpack(names)) or {}) do
      local rank = in_rank[i]
      if not tag then
        times[rank] = times[rank] or select(2, flows.restore(rank)) or rank * ranks
        call('ZADD', mark, 'NX', whole(times[rank] + costs[i] - 1), names[i])
      end
    end
    for rank in pairs(times) do flows.find(rank) end
  end
end

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
