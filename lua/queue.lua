-- queue: the waiters in the order of their scores. The score of a waiter is its rank times 2^49 plus a ticket, which is
-- higher than those of all earlier waiters of this rank. A waiter that stopped sending heartbeats loses its place when
-- it would be served. If a process did not renew a grant, and has sent no heartbeat for the waiter since, the waiter is put
-- behind all others until the next heartbeat: its score is 15 * 2^49, plus the time of this (ms) times 16, plus its
-- rank. The member of `beats` with the name of the process is 2^52 plus the time until which a heartbeat from before
-- that counts.
-- The third argument of a call is `grant channels`: how long a grant to a waiter lasts (µs), or its ttl if that is
-- shorter; the prefix of the channel names.
-- The state has these, once they are needed, and `alive_until`, the score of a live waiter; `tail`, the score of the
-- last waiter, if it was appended in this call; `kept`, for how long the keys of the queue are kept (ms; -2: no
-- `beats`).
queue = {
  alive = 7000000, -- how long a waiter counts as alive after a heartbeat (µs)
  tombstone = 60000000, -- how long a tombstone is kept (µs)
  living = '(4503599627370496', aside = 15 * ranks, -- the scores of waiters, and of those behind all ranks
}

-- Reads the third argument.
function queue.open(c)
  if c.grant then return end
  local grant, channels = match(c.args[3], '^(%d+) (.*)')
  c.grant, c.channels = number(grant), channels
  c.alive_until = format('%d', c.now + queue.alive) -- Redis formats numbers more slowly than Lua
end

-- Returns how many waiters are ahead of a new waiter of this rank.
function queue.ahead(c, rank)
  if c.holders.one then return call('ZCARD', c.queue) end
  return call('ZCOUNT', c.queue, '-inf', format('(%d', (rank + 1) * ranks))
end

-- Returns the first waiter of a rank, and its score; an empty list: there is none.
function queue.first(c, rank)
  local from, to = format('%d', rank * ranks), format('(%d', (rank + 1) * ranks)
  return call('ZRANGE', c.queue, from, to, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
end

-- The same for the last waiter without a flow.
function queue.last(c, rank)
  local all = call('ZRANGE', c.queue, -1, -1, 'WITHSCORES')
  local highest = number(all[2] or 0)
  -- Usually, all waiters are of one rank.
  if highest < rank * ranks then return {} end
  if highest < rank * ranks + plain then return all end
  local from, to = format('%d', rank * ranks), format('(%d', rank * ranks + plain)
  return call('ZRANGE', c.queue, to, from, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
end

-- Returns whether a token waits, and whether it has a tombstone.
function queue.look_up(c, text)
  local score = number(call('ZSCORE', c.beats, text) or 0)
  return score > 0 and score < lift, score > lift + c.now
end

-- Returns how many waiters are before a token; false: the token has no place.
function queue.place(c, text)
  return call('ZRANK', c.queue, text)
end

-- Removes a token from the order. `granted`: it is granted a lease.
function queue.remove(c, text, granted)
  c.tail = nil
  local drop = c.holders.drop
  if drop then drop(c, text, granted) else call('ZREM', c.queue, text) end
end

-- Removes a token; returns false if it does not wait.
function queue.leave(c, text)
  if not queue.look_up(c, text) then return false end
  call('ZREM', c.beats, text)
  queue.remove(c, text)
  return true
end

-- Sets the ttl of the queue keys: as long as tombstones are kept.
function queue.keep(c)
  c.kept = ceil(queue.tombstone / 1000)
  call('PEXPIRE', c.beats, c.kept)
  call('PEXPIRE', c.queue, c.kept)
  if c.holders.classes then call('PEXPIRE', c.mark, c.kept) end
end

-- Adds a token to `beats` before it is added to the queue. Returns false if it is already there, as a waiter or a
-- tombstone, or if the server refuses the write.
function queue.enter(c, text)
  return attempt('ZADD', c.beats, 'NX', c.alive_until, text) == 1
end

-- Appends a token to its rank. Waiters may leave before their first heartbeat, so this renews the ttl of a queue that
-- is never empty, when half of it has passed: half is longer than a waiter counts as alive. All runs of a call have one
-- rank. Returns how many waiters may be served before it, if its kind reports this and it is requested (`placed`).
function queue.line_up(c, text, rank, placed, entered)
  local holders = c.holders
  c.kept = c.kept or call('PTTL', c.beats)
  if not entered then call('ZADD', c.beats, c.alive_until, text) end
  local is_new, score, place
  if holders.line_up then is_new, score, place = holders.line_up(c, text, rank, placed) end
  if not score then
    local highest = c.tail or number(queue.last(c, rank)[2])
    if not highest and holders.starts then holders.starts(c, rank) end
    score = highest and highest + 1 or rank * ranks
    c.tail, is_new = score, is_new or not highest
  end
  call('ZADD', c.queue, format('%d', score), text)
  if is_new or c.kept < queue.tombstone / 2000 then queue.keep(c) end
  return place
end

local function behind_since(at)
  return queue.aside + floor(at / 1000) * 16
end

-- Removes many members of the order, or of `beats` too.
function queue.remove_all(c, tokens, beats)
  for i = 1, #tokens, 4000 do
    local last = min(i + 3999, #tokens)
    if beats then call('ZREM', c.beats, unpack(tokens, i, last)) end
    call('ZREM', c.queue, unpack(tokens, i, last))
  end
end

-- Removes waiters that are behind all others for longer than a heartbeat counts, or since before the clock was set
-- back.
function queue.drop_behind(c)
  local live = format('(%d', behind_since(c.now - queue.alive))
  local dead = call('ZRANGE', c.queue, format('%d', queue.aside), live, 'BYSCORE')
  local ahead = call('ZRANGE', c.queue, format('%d', behind_since(c.now) + 16), '+inf', 'BYSCORE')
  for _, text in ipairs(ahead) do dead[#dead + 1] = text end
  queue.remove_all(c, dead, true)
end

-- Puts a waiter behind all others.
function queue.put_behind(c, text)
  local rank = floor(call('ZSCORE', c.queue, text) / ranks)
  queue.remove(c, text)
  call('ZADD', c.queue, format('%d', behind_since(c.now) + rank), text)
end

-- Adds the tokens from this argument on that are behind all others to the queue again.
function queue.take_back(c, from)
  if number(call('ZRANGE', c.queue, -1, -1, 'WITHSCORES')[2] or 0) < queue.aside then return end
  for i, score in ipairs(call('ZMSCORE', c.queue, unpack(c.args, from))) do
    if score and number(score) >= queue.aside then
      local text = c.args[from + i - 1]
      call('ZREM', c.queue, text)
      c.tail = nil -- of another rank
      queue.line_up(c, text, score % 16, nil, true)
    end
  end
  queue.drop_behind(c)
end

-- Adds a tombstone for a token, and removes expired tombstones.
function queue.bury(c, text)
  call('ZREMRANGEBYSCORE', c.beats, lift, lift + c.now)
  call('ZADD', c.beats, lift + c.now + queue.tombstone, text)
  queue.keep(c)
end

-- Removes all waiters that stopped sending heartbeats.
function queue.drop_dead(c)
  local dead, is_ordered = call('ZRANGEBYSCORE', c.beats, '-inf', c.now), c.holders.is_ordered
  if #dead > 0 then call('ZREMRANGEBYSCORE', c.beats, '-inf', c.now) end
  for i = #dead, 1, -1 do
    if is_ordered and is_ordered(dead[i]) then queue.remove(c, table.remove(dead, i)) end
  end
  queue.remove_all(c, dead)
  c.tail = nil
end

-- Marks the waiters from this argument on as alive. If there are fewer places than waiters, the queue was evicted, and
-- each waiter without a place must acquire again.
function queue.beat(c, from)
  local evicted = call('ZCARD', c.queue) < call('ZCOUNT', c.beats, '-inf', queue.living)
  local scores = {}
  for i, score in ipairs(call('ZMSCORE', c.beats, unpack(c.args, from))) do
    local text = c.args[from + i - 1]
    if score and number(score) < lift then
      if evicted and not queue.place(c, text) then
        call('ZREM', c.beats, text)
      else
        scores[#scores + 1], scores[#scores + 2] = c.alive_until, text
      end
    end
  end
  if #scores == 0 then return end
  call('ZADD', c.beats, unpack(scores))
  queue.keep(c)
end
