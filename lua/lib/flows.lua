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
-- The score of a waiter with a flow is its rank times 2^49, plus 2^48, plus its flow times 2^26, plus a ticket.
-- The mark is a ZSET:
--   line    the flow and its rank as a number, the score of its waiters without the ticket / 2^26 -> rank * 2^49 + tag.
--           A flow without waiters: rank * 2^49 + 2^48 + tag. It is forgotten once the virtual time has passed its tag
--   vR      the virtual time of rank R -> rank * 2^49 + tag
--   tR      for rank R -> 2^52 + when it was served last, or got its first waiter (µs)
--   nR      for rank R -> 2^52 + since when it has waiters without a flow (µs). Only valid while one of these may be served
--           newest first
local width, most = 67108864, 4398046511104 -- 2^26; 2^42: the highest cost, and the longest aging and `newest`
local chosen -- the waiter that `head` found last: its token, rank, line, and the token behind it
local tops -- the first line of a rank and its tag, and the second one and its tag, if these are known

local none = {} -- the order of a token without one
local orders = {} -- by the end of a token
local function order(token)
  local ending = string.match(token, '/.*', 18) or ''
  local of = orders[ending]
  if of then return of end
  local flow, cost, aging, newest = string.match(ending, '^/[^/]*/[^/]*/(%x*)%.(%x*)%.(%x*)%.?(%x*)$')
  if flow then
    flow, cost, aging, newest = tonumber(flow, 16), tonumber(cost, 16), tonumber(aging, 16), tonumber(newest, 16)
    of = {flow = flow and cost and math.min(flow, 4194303), aging = aging and math.min(aging, most)}
    of.cost = of.flow and 2 * math.max(math.min(cost, most), 1)
    of.newest = not of.flow and newest and math.min(newest, most)
  end
  orders[ending] = of or none
  return orders[ending]
end

-- The functions for tokens that have an order. They are created when one has.
local by
local function new_order()
  by = {}
  local format, floor = string.format, math.floor

  local function whole(number)
    return format('%d', number)
  end

  -- The first `n` waiters of a line.
  local function front(line, n)
    return call('ZRANGE', queue, whole(line * width), '(' .. whole((line + 1) * width), 'BYSCORE', 'LIMIT', 0, n)
  end

  -- The virtual time of a rank, as a score; nil: it begins.
  local function served(rank)
    return tonumber(call('ZSCORE', mark, 'v' .. rank) or nil)
  end

  -- Returns the first line of a rank and its tag, and the second one and its tag, unless only the first is known.
  local function top(rank)
    if tops and tops.rank == rank and tops.mark == mark then return tops end
    local from, to = whole(rank * ranks), '(' .. whole(rank * ranks + plain)
    local tags = call('ZRANGE', mark, from, to, 'BYSCORE', 'LIMIT', 0, 3, 'WITHSCORES')
    tops = {mark = mark, rank = rank}
    for i = 1, #tags, 2 do
      if tags[i] ~= 'v' .. rank then tops[#tops + 1], tops[#tops + 2] = tags[i], tonumber(tags[i + 1]) end
    end
    return tops
  end

  -- Forgets the flows without waiters whose tag the virtual time has passed.
  local function pass(rank, reached)
    call('ZREMRANGEBYSCORE', mark, whole(rank * ranks + plain), '(' .. whole(reached + plain))
  end

  -- Returns the sum of a virtual time and a cost, and that time. All tags of the rank are lowered before one would leave its
  -- range.
  local function tag_of(rank, reached, cost)
    local from = rank * ranks
    if reached + cost < from + plain then return reached + cost, reached end
    pass(rank, reached)
    local all = call('ZRANGE', mark, whole(from), '(' .. whole(from + ranks), 'BYSCORE', 'WITHSCORES')
    -- A fresh tag may be one less than the virtual time.
    for i = 1, #all, 2 do call('ZADD', mark, whole(math.max(all[i + 1] - reached + from + 2, from)), all[i]) end
    return from + 2 + cost, from + 2
  end

  -- Returns the tag for a flow of which nothing is known.
  local function anew(rank, reached, cost)
    return (tag_of(rank, reached, cost - 1))
  end

  -- Records that a rank was served ('XX'), or got a waiter: its first ('CH') or another one ('NX').
  local function aged(rank, option)
    return rank > 0 and rank <= kind.counts and call('ZADD', mark, option, whole(lift + now), 't' .. rank) == 1
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
      call('ZADD', mark, whole(lift + now), 'n' .. rank)
      return true
    end
    return false, newest_first(token, from) and (rank > 0 and lease.ahead(rank - 1) or 0) or nil
  end

  -- Returns the ticket for a waiter behind the one with this score. Tickets begin again before they would leave the line.
  local function behind(line, last)
    if last + 1 < (line + 1) * width then return last + 1 end
    local all = front(line, width)
    for i, token in ipairs(all) do call('ZADD', queue, whole(line * width + i - 1), token) end
    return line * width + #all
  end

  -- Returns whether the keys have to be kept for longer; for a token with a flow, its score; and how many waiters may be
  -- served before it, if that is not the order of arrival. `placed`: whether the last is asked for.
  function by.line_up(of, rank, placed)
    chosen, tops = nil, nil -- the token behind it may be another one now
    local starts = of.aging and not lease.edge(rank)[1]
    local is_new = of.aging and aged(rank, starts and 'CH' or 'NX') or starts
    if of.newest then
      local begins, place = joins(rank)
      return is_new or begins, nil, place
    end
    if not of.flow then return is_new end
    local line = (rank * ranks + plain) / width + of.flow
    local from, to = whole(line * width), '(' .. whole((line + 1) * width)
    local last = call('ZRANGE', queue, to, from, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    local score = last and behind(line, tonumber(last)) or line * width
    if last and not placed then return is_new, score end
    local first, reached, before, begins = rank * ranks, served(rank), 0, false
    local flows = call('ZCOUNT', mark, whole(first), '(' .. whole(first + plain)) - (reached and 1 or 0)
    if last then
      before = call('ZCOUNT', queue, from, to)
    else
      begins, flows = flows == 0, flows + 1
      if begins then
        reached = nil
        call('ZREMRANGEBYSCORE', mark, whole(first), '(' .. whole(first + ranks))
      end
      reached = reached or first
      local tag = (not begins and tonumber(call('ZSCORE', mark, whole(line)) or nil) or 0) - plain
      if tag == reached then tag = tag + 1 end
      call('ZADD', mark, whole(tag < reached and anew(rank, reached, of.cost) or tag), whole(line))
      begins = begins or call('EXISTS', queue) == 0
    end
    if not placed then return is_new or begins, score end
    local lower = rank > 0 and lease.ahead(rank - 1) or 0
    return is_new or begins, score, math.min(lease.ahead(rank), lower + (before + 1) * math.max(flows, 1) - 1)
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

  function by.head(lowest)
    local token, score = lowest[1], tonumber(lowest[2])
    chosen = nil
    local rank = floor(score / ranks)
    local other = by.due(rank, order(token).aging)
    if other then
      lowest, rank = lease.edge(other), other
      token, score = lowest[1], tonumber(lowest[2])
    end
    if score % ranks < plain then
      if not (order(token).newest and newest_first(token, since(rank))) then return token end
      -- The first one is dropped if it stopped sending heartbeats: its turn may never come.
      local beat = tonumber(call('ZSCORE', beats, token) or 0)
      return beat > now and beat < lift and lease.edge(rank, true)[1] or token
    end
    while true do
      local first = top(rank)
      if not first[1] then return token end -- the flows were evicted: heartbeats bring them back
      local line = tonumber(string.match(first[1], '^%d+$') or '')
      local two = line and front(line, 2) or {}
      if two[1] then
        chosen = {token = two[1], first = true, next = two[2], rank = rank, line = line, tag = first[2]}
        return chosen.token
      end
      call('ZREM', mark, first[1]) -- the queue was evicted, and the flow did not come back; or it was forged
      tops = nil
    end
  end

  -- Removes a waiter from the queue. `granted`: it is granted a lease.
  function by.drop(of, token, granted)
    local was = chosen and chosen.token == token and chosen
    chosen = nil
    if not (was or of.flow or granted and of.aging) then return call('ZREM', queue, token) end
    if not was then
      local score = tonumber(call('ZSCORE', queue, token) or nil)
      if not score then return end
      was = {rank = floor(score / ranks), line = of.flow and floor(score / width)}
      local two = was.line and front(was.line, 2) or {}
      was.first, was.next = two[1] == token, two[two[1] == token and 2 or 1]
    end
    call('ZREM', queue, token)
    local rank, next, line, others = was.rank, was.next, was.line and whole(was.line), was.tag and tops
    tops = nil
    if granted and of.aging then aged(rank, 'XX') end
    if not line or next and not granted and not was.first then return end
    local tag = was.tag or tonumber(call('ZSCORE', mark, line) or nil)
    if not tag then return end -- it was evicted
    local is_fresh = tag % 2 == 1
    local reached
    if granted then
      -- No tag is below the virtual time, but for a fresh one. If another version has written a lower one, the virtual time
      -- steps back once, which costs little.
      local served_at = tag + tag % 2
      tag, reached = tag_of(rank, served_at, of.cost or 2)
      call('ZADD', mark, whole(reached), 'v' .. rank, whole(tag + (next and 0 or plain)), line)
      if others and others[3] and reached == served_at then
        -- All lines of a rank have the same number of digits.
        if next and (tag < others[4] or tag == others[4] and line < others[3]) then
          tops = {mark = mark, rank = rank, line, tag}
        else
          tops = {mark = mark, rank = rank, others[3], others[4]}
        end
      end
    else
      reached = served(rank) or rank * ranks
      if next and is_fresh then
        call('ZADD', mark, whole(math.max(tag - of.cost + (order(next).cost or 2), reached + 1)), line)
      elseif not next and is_fresh then
        call('ZREM', mark, line)
      elseif not next then
        call('ZADD', mark, whole(tag + plain), line)
      end
    end
    if not next then pass(rank, reached) end
  end

  -- Brings back the flows of waiters, if Redis has evicted them.
  function by.touch(tokens)
    local waits, lines = {}, {}
    for i, score in ipairs(call('ZMSCORE', queue, unpack(tokens))) do
      if score and order(tokens[i]).flow then
        waits[#waits + 1], lines[#lines + 1] = tokens[i], whole(floor(score / width))
      end
    end
    if #lines == 0 then return end
    for i, tag in ipairs(call('ZMSCORE', mark, unpack(lines))) do
      local rank = floor(lines[i] * width / ranks)
      if not tag then
        call('ZADD', mark, 'NX', whole(anew(rank, served(rank) or rank * ranks, order(waits[i]).cost)), lines[i])
      end
    end
  end
end

local permits_more = kind.more
function kind.more()
  permits_more()

  function kind.line_up(token, rank, placed)
    local of = order(token)
    if of == none then return end
    if not by then new_order() end
    return by.line_up(of, rank, placed)
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
    lowest = lowest or call('ZRANGE', queue, 0, 1, 'WITHSCORES')
    local token, score = lowest[1], lowest[2]
    if not token then return end
    if order(token) ~= none or score % ranks >= plain then
      if not by then new_order() end
      local first = by.head(lowest)
      if first ~= token then return first, {token, score} end
    end
    return token, lowest[4] and {lowest[3], lowest[4]}
  end

  -- Returns whether a waiter has to leave by `drop`.
  function kind.is_ordered(token)
    return order(token).flow
  end

  function kind.drop(token, granted)
    local of = order(token)
    if of == none and not chosen then return call('ZREM', queue, token) end
    if not by then new_order() end
    return by.drop(of, token, granted)
  end

  function kind.touch(tokens)
    for _, token in ipairs(tokens) do
      if order(token).flow then
        if not by then new_order() end
        return by.touch(tokens)
      end
    end
  end
end
