-- care: other operations on leases: renewals, heartbeats of waiters, lists of holders, and revocations.

-- Renews leases. It never revives an expired lease, and never makes a lease shorter.
-- Arguments  per run: token, ttl (µs), fence (the next fence will be higher than this; 0: no condition)
-- Returns    now (µs); then per run: 1 and the expiry (µs), or 0 if the token holds no longer (-1: a key is of another type)
-- Writes     the lease and the mark, with a ttl
local function renew(c, run)
  local rules, args = c.holders, c.args
  local text, ttl, fence = args[3 * run], number(args[3 * run + 1]), number(args[3 * run + 2])
  local expiry = rules.expires(c, text)
  if not expiry then return 0 end
  if rules.raise and fence > 0 then rules.raise(c, fence, text, expiry) end
  if expiry >= c.now + ttl then
    if rules.confirm then rules.confirm(c, text, expiry) end
    return 1, expiry
  end
  rules.extend(c, text, c.now + ttl)
  return 1, c.now + ttl
end

function operations.renew(keys, args)
  return state.each(keys, args, 2, renew)
end

-- Marks waiters of one process as alive, grants what is free, and returns the state of each.
-- Keys       one run
-- Arguments  see queue; the limit that the process knows, for kinds with settings; then the tokens
-- Returns    now (µs); when the next lease ends (µs, 0: unknown; -1: a key is of another type); a list, for each token:
--            1, expiry (µs), fence: it holds; 2, 0, 0: it waits; 0, 0, 0: neither; what was granted to this process (0,
--            or a list of messages, see grants)
-- Writes     beats, leases, the mark; all with a ttl
local function beat(c)
  local rules, args = c.holders, c.args
  queue.open(c)
  c.asker = args[5]
  if rules.sweep then rules.sweep(c) end
  queue.beat(c, 5)
  if not rules.one then queue.take_back(c, 5) end
  if rules.tell then rules.tell(c, args[4] .. '|', true) end
  grants.serve(c)
  local list, scores = {}, call('ZMSCORE', c.beats, unpack(args, 5))
  for i = 5, #args do
    local expiry, score = rules.expires(c, args[i]), scores[i - 4]
    local status = expiry and 1 or score and number(score) < lift and 2 or 0
    list[#list + 1], list[#list + 2], list[#list + 3] = status, expiry or 0, expiry and rules.fence(c) or 0
  end
  return rules.soonest(c), list, c.heard
end

function operations.heartbeat(keys, args)
  return state.each(keys, args, 3, beat)
end

-- Returns the holders and the number of waiters.
-- Keys       one run
-- Arguments  how many holders to return at most
-- Returns    now (µs); the sum of weights held (-1: a key is of another type); how many waiters there are; a list, for
--            each holder, the one whose lease ends first at the front: its token, expiry (µs), fence
local function list(c)
  local sum, all = c.holders.list(c, number(c.args[3]))
  return sum, queue.ahead(c, c.holders.counts), all
end

function operations.holders(keys, args)
  return state.each(keys, args, 3, list)
end

-- Releases a lease or a place in the queue of any process, and grants what becomes free. Notifies the process of a
-- holder, which then checks its lease.
-- Arguments  see queue; then per run: the token
-- Returns    now (µs); then per run: 1: it held; 2: it waited; 0: neither; -1: a key is of another type
-- Writes     deletes the lease; what is granted, with a ttl
local function revoke(c, run)
  local text = c.args[3 + run]
  queue.open(c)
  c.asker = '' -- the reply may go to another process than that of the token, so all messages are published
  local was = c.holders.forget(c, c.lock, c.mark, text, c.now) and 1 or queue.leave(c, text) and 2 or 0
  local process, id = match(text, '^(%x+)%-(%x+)')
  if was == 1 and process and #process == 16 then grants.publish(c, process, '0 0 ' .. id) end
  grants.serve(c)
  return was
end

function operations.revoke(keys, args)
  return state.each(keys, args, 1, revoke)
end
