-- fleet/members: notes that a process is alive or leaves, and counts the processes that are alive.
-- KEYS[1]   sorted set: process → when it was alive last, µs
-- ARGV      the process; 1: it leaves, 0: it is alive; how long a process counts after it was alive, µs; how many are kept
-- returns   now (µs); how many processes are alive, or -1 if the key is of another type
-- writes    the sorted set, with a ttl: ZREMRANGEBYSCORE, ZADD or ZREM
-- cost      O(log n), and O(log n) for each process that is forgotten
local process, leaves, ttl, most = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4])
local ended = redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - ttl))
if type(ended) == 'table' then return refused(ended) end
-- The clock was set back, or the time is not one of ours.
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + ttl), '+inf')
local count = redis.call('ZCARD', KEYS[1])
if leaves then
  count = count - redis.call('ZREM', KEYS[1], process)
else
  if count < most or redis.call('ZSCORE', KEYS[1], process) then
    local added = redis.pcall('ZADD', KEYS[1], now, process)
    if type(added) == 'table' then return added end
    count = count + added
  end
  redis.call('PEXPIRE', KEYS[1], ttl / 1000)
end
return {now, count}
