-- lease/turn: takes leases, or places in the queue for them, and gives them back; what becomes free is granted.
-- KEYS      see lib/lease, per run
-- ARGV      see lib/queue; then for all who take: ttl (µs), most (a queue of so many takes no more; 0: do not wait),
--           rank (lower goes first), and what the kind takes for all runs; then per run `take`, `insist` for a take
--           whatever is on record, `give`, or `void` for a give after which a take that comes late is refused; the
--           token; and for those who take or insist what the kind needs to look
-- returns   now (µs); then per run four numbers, what was granted to this process (0, or a list of messages), and for
--           kinds that look what was found (0: nothing)
--           take: 1 and expiry (µs), fence, 0: held, as before if the token held before; 2 or 0 and when the next
--           lease ends (µs, 0: unknown), 0, how many wait before it: queued, or refused; 3: nothing is left to do;
--           -2: given back before it came
--           give: 1: it was held; 2: it waited; 0: neither
-- writes    leases, places, withdrawals, the mark; all with a time to live
-- cost      for a free mutex four commands to take, of which two serve all runs; to give three for all runs
prefetch()
local names = {}
for i = 4, #KEYS, keys do names[#names + 1] = KEYS[i] end
local waiting = call('EXISTS', unpack(names)) > 0 -- somebody, for some key, or was withdrawn
local ttl, most, rank = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local function take(token, insists)
  sweep()
  local expiry, fence = held(token)
  local done
  if look then found, done = look(insists) end
  if expiry then return 1, expiry, fence end
  if done then return 3 end
  local before, length = 0, 0
  if waiting then
    local beat = tonumber(call('ZSCORE', beats, token) or 0)
    if beat > lift + now then return -2 end
    grant()
    if beat > 0 and beat < lift then
      expiry, fence = held(token)
      if expiry then return 1, expiry, fence end
      local position = place(token)
      if position then return 2, soonest(), 0, position end
    end
    length = counted()
    if length > 0 and length >= most then
      for _, dead in ipairs(call('ZRANGEBYSCORE', beats, '-inf', now)) do leave(dead) end
      grant()
      length = counted()
    end
    before = call('LLEN', queue) + (rank > 0 and call('LLEN', second) or 0)
  end
  if before == 0 and fits(token) then return 1, now + ttl, hold(token, now + ttl) end
  if done == false then return 3 end
  if length >= most then return 0, soonest(), 0, before end
  waiting = true
  call('ZADD', beats, now + life, token)
  if call('RPUSH', rank > 0 and second or queue, token) == 1 then keep() end
  return 2, soonest(), 0, before
end

local function give(token, verb)
  local was = holds(token) and 1 or 0
  if was == 1 then
    forget(token)
  elseif waiting and leave(token) then
    was = 2
  elseif verb == 'void' then
    waiting = true
    call('ZREMRANGEBYSCORE', beats, lift, lift + now)
    call('ZADD', beats, lift + now + mourning, token)
    keep()
  end
  if waiting then grant() end
  return was
end

base, at = 8, 8 + scope
local reply = each(keys, look and 6 or 5, function()
  local verb = ARGV[at]
  asker, at = ARGV[at + 1], at + 2
  if verb == 'take' or verb == 'insist' then return take(asker, verb == 'insist') end
  return give(asker, verb)
end)
finish()
return reply
