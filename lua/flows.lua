-- flows: fair shares among the waiters for permits. The rank of a waiter is its class; callers without a class have the
-- last one, 7. Each flow has a tag: the virtual time at which it may be served next. The lowest tag of a rank is served
-- first, and becomes the virtual time of the rank. Serving a waiter raises the tag of its flow by its cost: 1024 times
-- its weight, divided by the share that the newest waiter of the flow has (start-time fair queueing, Goyal et al.
-- 1996). A flow that is new to the rank pays for its first waiter in advance, so that new flows are not served before
-- all others. Its tag is fresh until the flow is served: if that waiter leaves, the flow pays for its next waiter
-- instead, or is removed. Virtual times count halves of a cost. A fresh tag is odd, all others are even.
-- The waiters of a rank without a flow count as one flow, with as many shares as the rank has other flows with waiters:
-- they get at most half of the permits, and the other flows get the other half. Their scores are the rank times 2^49,
-- plus a ticket.
-- The first waiter of a flow is its head: its score is its rank times 2^49, plus 2^47, plus the tag. So the lowest
-- score is served first; among equal scores, the lowest token. The score of a waiter after the head is its rank times
-- 2^49, plus 2^48, plus the number of its flow times 2^26, plus a ticket. Without the ticket, that is the line of the
-- flow. The state assigns the numbers. The mark is a ZSET. It has the settings (see settings), and in each rank R:
--   R:flow   rank * 2^49 + tag. A flow without waiters: rank * 2^49 + 2^48 + tag. It is removed once the virtual time
--            has passed its tag
--   #R:flow  -1 - (rank * 2^45 + how many wait after its head * 2^22 + its number)
--   NR       2^52 + the next number of a flow. It is missing if the mark was evicted
--   sR       2^52 + the tag of the waiters without a flow
--   tR       2^52 + when the rank was served last, or got its first waiter (µs)
--   nR       2^52 + since when it has waiters without a flow (µs)
flows = {lines = 281474976710656} -- 2^48 (`plain` is 2^47)
local width, most = 67108864, 4398046511104 -- 2^26; 2^42: the highest cost
local numbers, of_rank = 4194304, 35184372088832 -- 2^22, 2^45

local function whole(value)
  return format('%d', value)
end

local function weight_of(text)
  return permits.size(text) or 1
end

-- Returns the cost of a permit of this weight for this share, in halves.
local function cost(weight, share)
  return 2 * max(min(floor(weight * 1024 / share), most), 1)
end

local function index(rank, many, nth)
  return whole(-1 - rank * of_rank - many * numbers - nth)
end

local function of_index(rank, score)
  local both = -1 - score - rank * of_rank
  return floor(both / numbers), both % numbers
end

-- Returns the lowest and the highest score of a rank that `index` returns.
local function indexes(rank)
  return whole(-(rank + 1) * of_rank), whole(-1 - rank * of_rank)
end

local function name_of(rank, flow)
  return format('%d:%s', rank, flow)
end

local function base_of(rank, nth)
  return rank * ranks + flows.lines + nth * width
end

-- Returns the score of its tag, how many wait after the head of the flow and its number, the virtual time, and the next
-- number.
local function look(c, rank, name)
  local at = call('ZMSCORE', c.mark, name, '#' .. name, 'v' .. rank, 'N' .. rank)
  local many, nth
  if at[2] then many, nth = of_index(rank, number(at[2])) end
  return number(at[1] or nil), many, nth, number(at[3] or nil), at[4] and at[4] - lift
end

-- Returns how many flows of a rank have waiters.
local function leads_of(c, rank, reached)
  return call('ZCOUNT', c.mark, whole(rank * ranks), '(' .. whole(rank * ranks + flows.lines)) - (reached and 1 or 0)
end

local function add(c, all)
  for i = 1, #all, 4000 do call('ZADD', c.mark, unpack(all, i, min(i + 3999, #all))) end
end

-- Returns the lines of a rank: flow -> how many wait after its head, and its number; and the next number.
local function lines_of(c, rank)
  local of, next, from = {}, 0, rank * ranks
  local at, above = from + flows.lines, '(' .. whole(from + ranks)
  while true do
    local first = call('ZRANGE', c.queue, whole(at), above, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    if not first[1] then return of, next end
    local nth, flow = floor((first[2] - from - flows.lines) / width), settings.order(first[1]).flow
    at = base_of(rank, nth + 1)
    if flow then
      of[flow] = {call('ZCOUNT', c.queue, whole(at - width), '(' .. whole(at)), nth}
      next = nth + 1
    end
  end
end

-- Starts a rank afresh, or restores evicted data: the virtual time, and the tags and numbers of flows with waiters.
local function restore(c, rank)
  local from, all = rank * ranks, {}
  call('ZREMRANGEBYSCORE', c.mark, whole(from), '(' .. whole(from + ranks))
  call('ZREMRANGEBYSCORE', c.mark, indexes(rank))
  call('ZREM', c.mark, 's' .. rank)
  local of, next = lines_of(c, rank)
  local heads = call('ZRANGE', c.queue, whole(from + plain), '(' .. whole(from + flows.lines), 'BYSCORE', 'WITHSCORES')
  for i = 1, #heads, 2 do
    local flow, tag = settings.order(heads[i]).flow, heads[i + 1] - plain
    if flow then
      if i == 1 then all = {whole(tag - tag % 2), 'v' .. rank} end
      if not of[flow] then of[flow], next = {0, next}, next + 1 end
      local name, many, nth = name_of(rank, flow), unpack(of[flow])
      all[#all + 1], all[#all + 2] = whole(tag), name
      all[#all + 1], all[#all + 2] = index(rank, many, nth), '#' .. name
    end
  end
  all[#all + 1], all[#all + 2] = whole(lift + next), 'N' .. rank
  add(c, all)
  call('PEXPIRE', c.mark, ceil(queue.tombstone / 1000))
end

-- Assigns new numbers to the flows of a rank, from 0 on. Returns the next one.
local function renumber(c, rank)
  local all, from, to = {}, indexes(rank)
  local members = call('ZRANGE', c.mark, from, to, 'BYSCORE', 'WITHSCORES')
  for i = 1, #members, 2 do all[#all + 1] = {members[i], of_index(rank, number(members[i + 1]))} end
  table.sort(all, function(a, b) return a[3] < b[3] end)
  for i, of in ipairs(all) do
    local base = base_of(rank, of[3])
    local waiters = call('ZRANGE', c.queue, whole(base), '(' .. whole(base + width), 'BYSCORE')
    for n, text in ipairs(waiters) do call('ZADD', c.queue, whole(base_of(rank, i - 1) + n - 1), text) end
    call('ZADD', c.mark, index(rank, of[2], i - 1), of[1])
  end
  return #all
end

-- Removes the flows without waiters whose tags the virtual time has passed.
local function pass(c, rank, reached)
  local from, to = whole(rank * ranks + flows.lines), '(' .. whole(reached + flows.lines)
  local passed = call('ZRANGE', c.mark, from, to, 'BYSCORE')
  for i = 1, #passed do passed[#passed + 1] = '#' .. passed[i] end
  for i = 1, #passed, 4000 do call('ZREM', c.mark, unpack(passed, i, min(i + 3999, #passed))) end
end

-- Lowers the scores of a range, but not below its lowest: a fresh tag may be one less than the virtual time.
local function lower(zset, lowest, above, by)
  local all = call('ZRANGE', zset, whole(lowest), '(' .. whole(above), 'BYSCORE', 'WITHSCORES')
  for i = 1, #all, 2 do call('ZADD', zset, whole(max(all[i + 1] - by, lowest)), all[i]) end
end

-- Returns a tag and the virtual time. All tags of the rank are lowered before this one would leave its range.
local function fit(c, rank, tag, reached)
  local from = rank * ranks
  if tag < from + plain then return tag, reached end
  pass(c, rank, reached)
  local by = reached - from - 2
  lower(c.mark, from, from + ranks, by)
  lower(c.queue, from + plain, from + flows.lines, by)
  local others = number(call('ZSCORE', c.mark, 's' .. rank) or nil)
  if others then call('ZADD', c.mark, whole(max(others - by, lift)), 's' .. rank) end
  return tag - by, from + 2
end

-- Returns the ticket for a waiter after the one with this score. Tickets start again before they would exceed the line.
local function behind(c, base, last)
  if not last then return base end
  if last + 1 < base + width then return last + 1 end
  local all = call('ZRANGE', c.queue, whole(base), '(' .. whole(base + width), 'BYSCORE')
  for i, text in ipairs(all) do call('ZADD', c.queue, whole(base + i - 1), text) end
  return base + #all
end

local function last_of(c, base)
  local from, to = '(' .. whole(base + width), whole(base)
  return call('ZRANGE', c.queue, from, to, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
end

-- Returns the score of a new waiter, whether it begins its rank, and how many waiters may be served before it, if `placed`.
function flows.line_up(c, text, of, rank, placed)
  local from, name = rank * ranks, name_of(rank, of.flow)
  local tag, many, nth, reached, next = look(c, rank, name)
  local leads = leads_of(c, rank, reached)
  local begins = leads == 0
  if begins or not next then
    restore(c, rank)
    tag, many, nth, reached, next = look(c, rank, name)
    leads = leads_of(c, rank, reached)
    begins = leads == 0
  end
  if not nth then
    if next >= numbers then next = renumber(c, rank) end
    many, nth, next = 0, next, next + 1
  end
  local score, before
  if tag and tag < from + flows.lines then
    local base = base_of(rank, nth)
    many, before = many + 1, many + 1
    score = behind(c, base, number(last_of(c, base)[2] or nil))
    call('ZADD', c.mark, index(rank, many, nth), '#' .. name)
  else
    reached, tag, before, leads = reached or from, (tag or 0) - flows.lines, 0, leads + 1
    if tag == reached then tag = tag + 1 end
    if tag < reached then tag = reached + cost(weight_of(text), of.share) - 1 end
    tag = fit(c, rank, tag, reached)
    call('ZADD', c.mark, whole(tag), name, index(rank, 0, nth), '#' .. name, whole(lift + next), 'N' .. rank)
    score = tag + plain
  end
  if not placed then return score, begins end
  local below = rank > 0 and queue.ahead(c, rank - 1) or 0
  return score, begins, min(queue.ahead(c, rank), below + (before + 1) * max(leads, 1) - 1)
end

-- Finds the line of a flow whose members of the mark were evicted. Its tag is kept. Returns the results of `look`
-- without the tag.
local function find_line(c, of, rank, name)
  local from = rank * ranks
  restore(c, rank)
  local _, many, nth, reached, next = look(c, rank, name)
  if nth then return many, nth, reached, next end
  local first = call('ZRANGE', c.queue, whole(from + flows.lines), '(' .. whole(from + ranks), 'BYSCORE', 'WITHSCORES')
  for i = 1, #first, 2 do
    if settings.order(first[i]).flow == of.flow then
      nth, many = floor((first[i + 1] - from - flows.lines) / width), (many or 0) + 1
    end
  end
  if not nth then many, nth, next = 0, next, next + 1 end
  call('ZADD', c.mark, whole(lift + next), 'N' .. rank)
  return many, nth, reached, next
end

-- The head of a flow has left the queue. `granted`: it is granted a lease. The waiter after it becomes the head.
function flows.drop(c, text, of, rank, score, granted)
  local from, name, tag = rank * ranks, name_of(rank, of.flow), score - plain
  local tagged, many, nth, reached, next = look(c, rank, name)
  if not (tagged and nth and next) then many, nth, reached = find_line(c, of, rank, name) end
  reached = reached or from
  local base, second, newest = base_of(rank, nth), nil, nil
  if many > 0 then
    second = call('ZRANGE', c.queue, whole(base), '(' .. whole(base + width), 'BYSCORE', 'LIMIT', 0, 1)[1]
    newest = granted and last_of(c, base)[1]
  end
  if granted then
    -- No tag is below the virtual time, except a fresh one.
    reached = tag + tag % 2
    tag = reached + cost(weight_of(text), settings.order(newest or text).share or 1)
    tag, reached = fit(c, rank, tag, reached)
    call('ZADD', c.mark, whole(reached), 'v' .. rank)
  elseif tag % 2 == 1 and second then
    local other = cost(weight_of(second), settings.order(second).share or 1)
    tag, reached = fit(c, rank, max(tag - cost(weight_of(text), of.share) + other, reached + 1), reached)
  elseif tag % 2 == 1 then
    call('ZREM', c.mark, name, '#' .. name)
    return pass(c, rank, reached)
  end
  if second then
    call('ZADD', c.queue, whole(tag + plain), second)
    call('ZADD', c.mark, whole(tag), name, index(rank, many - 1, nth), '#' .. name)
  else
    call('ZADD', c.mark, whole(tag + flows.lines), name, index(rank, 0, nth), '#' .. name)
    pass(c, rank, reached)
  end
end

-- A waiter after the head of its flow has left the queue.
function flows.leave(c, of, rank)
  local name = name_of(rank, of.flow)
  local _, many, nth = look(c, rank, name)
  if many and many > 0 then call('ZADD', c.mark, index(rank, many - 1, nth), '#' .. name) end
end

-- Returns the tag of the waiters without a flow of a rank that has flows.
function flows.others(c, rank)
  local at = call('ZMSCORE', c.mark, 's' .. rank, 'v' .. rank, 'N' .. rank)
  if not at[3] then
    restore(c, rank)
    at = call('ZMSCORE', c.mark, 's' .. rank, 'v' .. rank)
  end
  local from = rank * ranks
  return max(from + (at[1] and at[1] - lift or 0), number(at[2] or nil) or from)
end

-- A waiter without a flow, of a rank that has flows, is granted a lease.
function flows.serve_other(c, text, rank)
  local from, tag = rank * ranks, flows.others(c, rank)
  local reached = tag + tag % 2
  local leads = leads_of(c, rank, call('ZSCORE', c.mark, 'v' .. rank))
  tag, reached = fit(c, rank, reached + cost(weight_of(text), max(leads, 1)), reached)
  call('ZADD', c.mark, whole(reached), 'v' .. rank, whole(lift + tag - from), 's' .. rank)
end

-- Returns whether a flow has waiters in a rank.
function flows.waits(c, of, rank)
  local tag = number(call('ZSCORE', c.mark, name_of(rank, of.flow)) or nil)
  return tag and tag < rank * ranks + flows.lines
end

-- Returns how many waiters the longest line of a rank has, and the last of them; 0: no flow has two.
function flows.longest(c, rank)
  local from, to = indexes(rank)
  local score = call('ZRANGE', c.mark, from, to, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  if not score then return 0 end
  local many, nth = of_index(rank, number(score))
  local last = many > 0 and last_of(c, base_of(rank, nth))[1]
  return last and many + 1 or 0, last
end
