-- lease/heartbeat: marks waiters of one process as alive, and returns the state of each.
-- KEYS      see lib/lease, one run
-- ARGV      see lib/queue; then what the process tells of the limit, for kinds with settings (see lib/settings); then the
-- tokens
-- returns   now (µs); when the next lease ends (µs, 0: unknown; -1: a key is of another type); a list, for each token:
--           1, expiry (µs), fence: it holds; 2, 0, 0: it waits; 0, 0, 0: neither; what was granted to this process (0,
--           or a list of messages, see lib/queue)
-- writes    beats, leases, the mark; all with a ttl
local waiters = new_waiters()
asker = ARGV[3]

-- Marks the waiters as alive. Fewer places than waiters: the queue was evicted, and each waiter without a place must
-- ask again.
local function beat()
  local evicted = call('ZCARD', queue) < call('ZCOUNT', beats, '-inf', living)
  local scores = {}
  for i, score in ipairs(call('ZMSCORE', beats, unpack(ARGV, 3))) do
    local token = ARGV[i + 2]
    if score and tonumber(score) < lift then
      if evicted and not waiters.place(token) then
        call('ZREM', beats, token)
      else
        scores[#scores + 1], scores[#scores + 2] = waiters.alive_until, token
      end
    end
  end
  if #scores == 0 then return end
  call('ZREM', beats, '') -- removes nothing, but allows ZADD if the server is out of memory, see lib/permits
  call('ZADD', beats, unpack(scores))
  waiters.keep()
end

return lease.each(3, function()
  if kind.sweep then kind.sweep() end
  beat()
  if not kind.one then waiters.take_back(3) end
  if kind.tell then kind.tell(ARGV[2] .. '|', true) end
  waiters.grant()
  local list, scores = {}, call('ZMSCORE', beats, unpack(ARGV, 3))
  for i = 3, #ARGV do
    local expiry, score = kind.expires(ARGV[i]), scores[i - 2]
    local status = expiry and 1 or score and tonumber(score) < lift and 2 or 0
    list[#list + 1], list[#list + 2], list[#list + 3] = status, expiry or 0, expiry and kind.fence() or 0
  end
  return kind.soonest(), list, heard
end, true)
