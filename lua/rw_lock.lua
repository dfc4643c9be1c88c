-- rw_lock: readers of one group, or one writer. The holders are a ZSET, token -> expiry (µs). The token of a reader
-- ends in `/r` and the group. The token of a writer ends in `/w` and how many writers in a row may pass waiting
-- readers. Writers have rank 0, readers rank 1.
-- The mark is `fence row`: the fence of the last writer, and how many writers in a row have passed waiting readers.
rw_lock = {
  timed = true, counts = 1, turns = true,
  expires = holders.expires, soonest = holders.soonest, confirm = holders.confirm,
}

local function writes(text)
  return match(text, '^[^/]*/w(%d+)$')
end

local function mode(text)
  return match(text, '^[^/]*/(.*)$')
end

-- Returns the fence of the last writer, and how many writers in a row have passed waiting readers.
local function marked(mark)
  local fence, row = match(call('GET', mark) or '0 0', '^(%d+) (%d+)$')
  if not fence then error('WRONGTYPE of a mark', 0) end
  return state.whole(fence), state.whole(row)
end

function rw_lock.fence(c)
  return (marked(c.mark))
end

local function set_mark(mark, fence, row, text, now, expiry)
  call('SET', mark, format('%d %d', fence, row), 'PX', (token.fence_ttl(text, expiry, now)))
end

local function sweep(c, lock, now)
  local expired = holders.expired(lock, now)
  for i = 1, #expired, 2 do
    call('ZREM', lock, expired[i]) -- before `lapse`, see permits
    if c then holders.lapse(c, expired[i], number(expired[i + 1])) end
  end
end

function rw_lock.sweep(c)
  sweep(c, c.lock, c.now)
end

function rw_lock.free(c)
  return call('EXISTS', c.lock) == 0
end

function rw_lock.fits(c, text)
  local holder = call('ZRANGE', c.lock, 0, 0)[1]
  return not holder or not writes(text) and mode(holder) == mode(text)
end

-- Adds a holder. `queue_of`: the key of the waiters, if there may be any.
local function put(lock, mark, queue_of, text, now, expiry, score)
  local last, row = marked(mark)
  call('ZADD', lock, score, text)
  call('PEXPIRE', lock, '172800000') -- two days
  if not writes(text) then
    if row > 0 then set_mark(mark, last, 0, text, now, expiry) end
    return last
  end
  local fence = max(now, last + 1)
  local has_readers = queue_of and call('ZCOUNT', queue_of, ranks, format('(%d', queue.aside)) > 0
  set_mark(mark, fence, has_readers and row + 1 or 0, text, now, expiry)
  return fence
end

function rw_lock.hold(c, text, expiry, granted)
  return put(c.lock, c.mark, c.queue, text, c.now, expiry, holders.score(expiry, granted))
end

-- Expired holders count as well, so if a lease has expired, `fits` decides.
function rw_lock.take(_, _, lock, mark, text, now, ttl)
  local first = call('ZRANGE', lock, 0, 0, 'WITHSCORES')
  local fits = not first[1]
  if not fits and not writes(text) and mode(first[1]) == mode(text) then
    fits = number(first[2]) >= now + 1 and not call('ZSCORE', lock, text)
  end
  return fits and put(lock, mark, nil, text, now, now + ttl, format('%d', now + ttl)) or nil
end

function rw_lock.forget(c, lock, _, text, now)
  sweep(c, lock, now)
  return call('ZREM', lock, text) == 1
end

function rw_lock.list(c, most)
  return holders.count(c), holders.list(c, most, rw_lock.fence(c))
end

function rw_lock.extend(c, text, expiry)
  call('PEXPIRE', c.lock, '172800000') -- before ZADD, see permits
  call('ZADD', c.lock, expiry, text)
  if writes(text) then call('PEXPIRE', c.mark, (token.fence_ttl(text, expiry, c.now))) end
end

function rw_lock.head(c, turn)
  local first = call('ZRANGE', c.queue, 0, 0, 'WITHSCORES')
  local row = first[1] and number(first[2]) < ranks and writes(first[1])
  local reader = row and queue.first(c, 1)[1]
  if not reader then return first[1], turn, first[1] and floor(first[2] / ranks) end
  if not turn then
    local _, passed = marked(c.mark)
    turn = passed >= number(row)
  end
  return turn and reader or first[1], turn
end

kinds.rw_lock = {holders = rw_lock, keys = 4, ttl = 4, looks = 0}
