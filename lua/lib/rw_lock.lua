-- rw_lock: readers of one group, or one writer. The holders are a ZSET, token -> expiry (µs). The token of a reader
-- ends in `/r` and the group. The token of a writer ends in `/w` and how many writers in a row may go before
-- waiting readers. Writers have rank 0, readers rank 1.
-- The mark is `fence row`: the fence of the last writer, and how many writers in a row went before waiting readers.
local function writes(token)
  return string.match(token, '^[^/]*/w(%d+)$')
end

local function marked()
  local fence, row = string.match(call('GET', mark) or '0 0', '^(%d+) (%d+)$')
  if not fence then error('WRONGTYPE of a mark', 0) end
  return kind.whole(fence), kind.whole(row)
end

local function set_mark(fence, row, token, expiry)
  call('SET', mark, string.format('%d %d', fence, row), 'PX', (kind.fence_ttl(token, expiry)))
end

local function sweep()
  local expired = call('ZRANGEBYSCORE', holders, '-inf', string.format('%d.5', now), 'WITHSCORES')
  for i = 1, #expired, 2 do
    call('ZREM', holders, expired[i]) -- before `lapse`, see lib/permits
    if lease then lease.lapse(expired[i], tonumber(expired[i + 1])) end
  end
end

function kind.free()
  return call('EXISTS', holders) == 0
end

local function keep()
  call('PEXPIRE', holders, 2 * 24 * 3600 * 1000)
end

function kind.hold(token, expiry, granted)
  local last, row = marked()
  call('ZADD', holders, granted and lease.granted(expiry) or expiry, token)
  keep()
  if not writes(token) then
    if row > 0 then set_mark(last, 0, token, expiry) end
    return last
  end
  local fence = math.max(now, last + 1)
  local has_readers = call('ZCOUNT', queue, ranks, string.format('(%d', 15 * ranks)) > 0
  set_mark(fence, has_readers and row + 1 or 0, token, expiry)
  return fence
end

function kind.forget(token)
  sweep()
  return call('ZREM', holders, token) == 1
end

function kind.more()
  new_lease()
  kind.counts, kind.turns, kind.sweep = 1, true, sweep
  kind.expires, kind.fence, kind.soonest, kind.confirm = lease.expires, marked, lease.soonest, lease.confirm

  function kind.used()
    return call('ZCARD', holders)
  end

  function kind.list(most)
    return call('ZCOUNT', holders, string.format('(%d.5', now), '(4503599627370496'), lease.list(most, (marked()))
  end

  function kind.extend(token, expiry)
    keep() -- before ZADD, see lib/permits
    call('ZADD', holders, expiry, token)
    if writes(token) then call('PEXPIRE', mark, (kind.fence_ttl(token, expiry))) end
  end

  local function mode(token)
    return string.match(token, '^[^/]*/(.*)$')
  end

  function kind.fits(token)
    local holder = call('ZRANGE', holders, 0, 0)[1]
    return not holder or (not writes(token) and mode(holder) == mode(token))
  end

  function kind.head(turn)
    local first = call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    local most = first[1] and tonumber(first[2]) < ranks and writes(first[1])
    local reader = most and lease.edge(1)[1]
    if not reader then return first[1], turn, first[1] and math.floor(first[2] / ranks) end
    if not turn then
      local _, row = marked()
      turn = row >= tonumber(most)
    end
    return turn and reader or first[1], turn
  end
end
