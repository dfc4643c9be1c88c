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
    call('PEXPIRE', mark, math.ceil(lease.tombstone / 1000))
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
