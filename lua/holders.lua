-- holders: the common part of permits and reader-writer locks. The holders are a ZSET, token -> expiry (µs); plus a
-- half if the lease was granted to a waiter, and not renewed since.
local none = {}

function holders.expires(c, text)
  local expiry = floor(call('ZSCORE', c.lock, text) or 0)
  return expiry > c.now and expiry or nil
end

-- Returns the score of a holder. A waiter that was granted its lease still has to renew it.
function holders.score(expiry, granted)
  return format(granted and '%d.5' or '%d', expiry)
end

-- Records the renewal of a granted lease.
function holders.confirm(c, text, expiry)
  call('ZADD', c.lock, 'XX', format('%d', expiry), text)
end

-- Returns the tokens whose leases have expired, each with its score.
function holders.expired(lock, now)
  local last = format('%d.5', now)
  if call('ZCOUNT', lock, '-inf', last) == 0 then return none end
  return call('ZRANGEBYSCORE', lock, '-inf', last, 'WITHSCORES')
end

-- A granted lease has expired. Its process counts as one that stopped sending heartbeats until its next heartbeat.
function holders.lapse(c, text, score)
  if score % 1 == 0 or call('EXISTS', c.queue) == 0 then return end
  call('ZADD', c.beats, 'GT', format('%d', lift + floor(score) + queue.alive), token.process(text))
  if call('PTTL', c.beats) == -1 then call('PEXPIRE', c.beats, ceil(queue.tombstone / 1000)) end -- it was evicted
end

function holders.count(c)
  return call('ZCOUNT', c.lock, format('(%d.5', c.now), '(4503599627370496')
end

function holders.list(c, most, fence)
  local from = format('(%d.5', c.now)
  local members = call('ZRANGE', c.lock, from, '(4503599627370496', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  local list = {}
  for i = 1, #members, 2 do
    list[#list + 1], list[#list + 2], list[#list + 3] = members[i], floor(members[i + 1]), fence
  end
  return list
end

local function lasts_too_long(c, text, expiry)
  local ttl = text and token.ttl(text)
  return ttl and floor(expiry) > c.now + ttl
end

function holders.soonest(c)
  local first = call('ZRANGE', c.lock, 0, 0, 'WITHSCORES')
  local last = first
  if first[1] and c.count ~= 1 then
    last = call('ZRANGE', c.lock, lift, 0, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
  end
  local is_usual = not (lasts_too_long(c, first[1], first[2]) or lasts_too_long(c, last[1], last[2]))
  if is_usual then return floor(first[2] or 0) end
  local all = call('ZRANGE', c.lock, 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do
    if lasts_too_long(c, all[i], all[i + 1]) then call('ZADD', c.lock, c.now + token.ttl(all[i]), all[i]) end
  end
  return floor(call('ZRANGE', c.lock, 0, 0, 'WITHSCORES')[2])
end
