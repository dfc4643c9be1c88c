-- lease/acquire_all: acquires a lease of each of several keys: all of them, or none. It takes no place in a queue.
-- KEYS      see lib/lease, one run for each lease, all of different keys
-- ARGV      see lib/queue; then the ttl of the leases (µs); then per run: the token
-- returns   now (µs); then one of these:
--           1; then per run: expiry (µs), fence: all hold
--           0, when the next lease of the first key that is not free ends (µs, 0: unknown), how many wait for it
--           -2: a token was withdrawn before; -1: a key is of another type
-- writes    the leases and the mark; what is granted to waiters; all with a ttl
-- cost      two commands, and for each free lock four more
local keys, count, expiry = kind.keys, #KEYS / kind.keys, now + ARGV[2]
local waiters, waiting = new_waiters(), {}
asker = '' -- all messages are published

local function begin(run)
  holders, mark, queue, beats = unpack(KEYS, keys * (run - 1) + 1, keys * run)
  kind.begin(run)
end

-- Returns nothing if the current key is free of holders and waiters, or the token holds it; otherwise the reply.
local function obstacle(token)
  call('GET', holders) -- fails on a key of another type, which MGET reads as missing
  call('GET', mark)
  kind.fence()
  if kind.expires(token) then return nil end
  if waiting then
    local _, withdrawn = waiters.look_up(token)
    if withdrawn then return {now, -2} end
    waiters.grant()
  end
  if not kind.free() then return {now, 0, kind.soonest(), lease.ahead(kind.counts)} end
end

local ok, reply = pcall(function()
  for run = 1, count do waiting[run] = KEYS[keys * (run - 1) + 4] end
  waiting = call('EXISTS', unpack(waiting)) > 0
  kind.read(true)
  for run = 1, count do
    begin(run)
    local problem = obstacle(ARGV[2 + run])
    if problem then return problem end
  end
  local held = {now, 1}
  for run = 1, count do
    begin(run)
    local token = ARGV[2 + run]
    local ends = kind.expires(token)
    held[#held + 1] = ends or expiry
    held[#held + 1] = ends and kind.fence() or kind.hold(token, expiry)
  end
  return held
end)
return ok and reply or failure(reply) or {now, -1}
