-- queue: the waiters in the order of their scores, and the grants of free leases to them. The score of a waiter is its
-- rank times 2^49 plus a ticket, which is higher than those of all waiters of this rank before it. A waiter that stopped
-- sending heartbeats loses its place when its turn comes. One whose process did not renew a grant, and has sent no heartbeat
-- for it since, waits behind all others until the next one: its score is 15 * 2^49, plus since when (ms) times 16, plus its
-- rank. The member of `beats` with the name of the process is 2^52 plus until when a heartbeat from before that counts.
-- ARGV[1] is `grant alive tombstone channels`: how long a grant to a waiter lasts, or its ttl if that is shorter; how long
-- a waiter counts as alive after a heartbeat; how long a tombstone is kept (all µs); the prefix of the channel names.
local living = '(4503599627370496' -- the scores of waiters are below this
local tail -- the score of the last waiter, if it was appended in this call
local kept -- for how long the keys of the current queue are kept (ms), if known; -2: there is no `beats`

-- Creates the functions on waiters. Only called where there are waiters: it takes time that most calls do not need.
local function new_waiters()
  kind.more()
  local waiters, format, sub = {}, string.format, string.sub
  local aside = 15 * ranks -- the scores of those behind all ranks
  local grant, alive, tombstone, channels = string.match(ARGV[1], '^(%d+) (%d+) (%d+) (.*)')
  grant, tombstone = tonumber(grant), tonumber(tombstone)
  lease.tombstone, lease.channels, lease.alive = tombstone, channels, tonumber(alive)
  local alive_until = format('%d', now + alive) -- Redis formats numbers more slowly than Lua
  waiters.alive_until = alive_until

  -- Returns whether a token waits, and whether it has a tombstone.
  function waiters.look_up(token)
    local score = tonumber(call('ZSCORE', beats, token) or 0)
    return score > 0 and score < lift, score > lift + now
  end

  -- Removes a token from the queue. `granted`: it is granted a lease.
  local function unqueue(token, granted)
    tail = nil
    if kind.drop then kind.drop(token, granted) else call('ZREM', queue, token) end
  end

  -- Returns how many waiters are before a token; false: the token has no place.
  function waiters.place(token)
    return call('ZRANK', queue, token)
  end

  -- Removes a token from the queue; returns false if it does not wait.
  function waiters.leave(token)
    if not waiters.look_up(token) then return false end
    call('ZREM', beats, token)
    unqueue(token)
    return true
  end

  -- Sets the ttl of the queue keys: as long as tombstones are kept.
  function waiters.keep()
    kept = math.ceil(tombstone / 1000)
    call('PEXPIRE', beats, kept)
    call('PEXPIRE', queue, kept)
    if kind.classes then call('PEXPIRE', mark, kept) end
  end

  -- Adds a token to `beats` before it lines up. Returns false if it is there already, as a waiter or a tombstone.
  function waiters.enter(token)
    return call('ZADD', beats, 'NX', alive_until, token) == 1
  end

  -- Appends a token to its rank. Waiters may leave before their first heartbeat, so this renews the ttl of a queue
  -- that is never empty, at half of it: that is longer than a waiter counts as alive. All runs of a call have one rank.
  -- Returns how many waiters may be served before it, if its kind says so, and that is asked for (`placed`).
  function waiters.line_up(token, rank, placed, entered)
    kept = kept or call('PTTL', beats)
    if not entered then call('ZADD', beats, alive_until, token) end
    local is_new, score, place
    if kind.line_up then is_new, score, place = kind.line_up(token, rank, placed) end
    if not score then
      local highest = tail or tonumber(lease.edge(rank, true)[2])
      if not highest and kind.starts then kind.starts(rank) end
      score = highest and highest + 1 or rank * ranks
      tail, is_new = score, is_new or not highest
    end
    call('ZADD', queue, format('%d', score), token)
    if is_new or kept < tombstone / 2000 then waiters.keep() end
    return place
  end

  local function behind_since(at)
    return aside + math.floor(at / 1000) * 16
  end

  -- Forgets those that wait behind all others for longer than a heartbeat counts, or from before the clock was set back.
  local function drop_behind()
    local live = format('(%d', behind_since(now - lease.alive))
    local dead = call('ZRANGE', queue, format('%d', aside), live, 'BYSCORE')
    local ahead = call('ZRANGE', queue, format('%d', behind_since(now) + 16), '+inf', 'BYSCORE')
    for _, token in ipairs(ahead) do dead[#dead + 1] = token end
    for i = 1, #dead, 4000 do
      call('ZREM', beats, unpack(dead, i, math.min(i + 3999, #dead)))
      call('ZREM', queue, unpack(dead, i, math.min(i + 3999, #dead)))
    end
  end

  -- Lets a waiter wait behind all others.
  local function put_behind(token)
    local rank = math.floor(call('ZSCORE', queue, token) / ranks)
    unqueue(token)
    call('ZADD', queue, format('%d', behind_since(now) + rank), token)
  end

  -- Lines up again those of these tokens that wait behind all others. `from`: the first one in ARGV.
  function waiters.take_back(from)
    if tonumber(call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0) < aside then return end
    for i, score in ipairs(call('ZMSCORE', queue, unpack(ARGV, from))) do
      if score and tonumber(score) >= aside then
        local token = ARGV[from + i - 1]
        call('ZREM', queue, token)
        tail = nil -- of another rank
        waiters.line_up(token, score % 16, nil, true)
      end
    end
    drop_behind()
  end

  -- Adds a tombstone for a token, and removes the tombstones that are out of date.
  function waiters.bury(token)
    call('ZREMRANGEBYSCORE', beats, lift, lift + now)
    call('ZADD', beats, lift + now + tombstone, token)
    waiters.keep()
  end

  -- Removes all waiters that stopped sending heartbeats.
  function waiters.drop_dead()
    local dead = call('ZRANGEBYSCORE', beats, '-inf', now)
    if #dead > 0 then call('ZREMRANGEBYSCORE', beats, '-inf', now) end
    for i = #dead, 1, -1 do
      if kind.is_ordered and kind.is_ordered(dead[i]) then unqueue(table.remove(dead, i)) end
    end
    for i = 1, #dead, 4000 do call('ZREM', queue, unpack(dead, i, math.min(i + 3999, #dead))) end
    tail = nil
  end

  -- Sends a message to a process: in the reply if the asker is of that process, else published. The message is
  -- `expiry fence id` of a waiter that holds now (expiry in µs); or `0 0` and the ids of waiters that must ask
  -- again, perhaps with a second line that tells them the outcome; or `0 1 id` of a waiter that is refused, since the queue
  -- is full, or `0 2 id`, since the limit is 0. Ids are hexadecimal, as in tokens: they exceed 2^53.
  local function tell(process, text)
    if process == sub(asker, 1, 16) then
      if heard == 0 then heard = {} end
      heard[#heard + 1] = text
    else
      lease.publish(process, text)
    end
  end

  local function id_of(token)
    return string.match(token, '^%x+', 18)
  end

  -- Removes a waiter, and refuses it.
  local function refuse(token, why)
    local id = id_of(token)
    call('ZREM', beats, token)
    unqueue(token)
    if id then tell(sub(token, 1, 16), format('0 %d ', why) .. id) end
  end

  -- Refuses the last waiter of the longest line of a rank, for a caller whose line is empty. Returns whether there was one.
  function waiters.make_room(token, rank)
    local other = kind.longest and kind.longest(token, rank)
    if other then refuse(other, 1) end
    return other and true
  end

  -- Grants leases while the first waiter in the queue fits. Returns whether any waits behind all others since then.
  local function serve()
    local token, turn, rank, have_lapsed
    tail = nil
    while not (kind.one and kind.used() > 0) do
      if kind.head then token, turn, rank = kind.head(turn) else token = call('ZRANGE', queue, 0, 0)[1] end
      if not token then break end
      local times = call('ZMSCORE', beats, token, sub(token, 1, 16))
      local score, lapsed = tonumber(times[1] or 0), tonumber(times[2] or 0)
      if lapsed > alive_until + lift then lapsed = 0 end -- from before the clock was set back
      local lives = score > now and score < lift
      if lives and rank == 15 then break end
      if lives and score + lift < lapsed then
        put_behind(token)
        have_lapsed = true
      elseif lives and kind.is_closed and kind.is_closed(token, rank) then
        refuse(token, 2)
      else
        if lives and not kind.fits(token, rank) then break end
        call('ZREM', beats, token)
        unqueue(token, lives)
        if lives then
          local expiry = now + math.min(lease.ttl_of(token) or grant, grant)
          local fence, id = kind.hold(token, expiry, true), id_of(token)
          if id then tell(sub(token, 1, 16), format('%d %d ', expiry, fence) .. id) end
        end
      end
    end
    return have_lapsed
  end

  function waiters.grant()
    if not serve() then return end
    waiters.keep() -- the queue may have been empty for a moment
    drop_behind()
  end

  -- Empties the queue. Tells the waiters to ask again, or sends them the outcome if `told` is a text.
  function waiters.dismiss(told)
    local processes, ids, tokens = {}, {}, call('ZRANGE', queue, 0, -1)
    if #tokens == 0 then return end
    for _, token in ipairs(tokens) do
      local process, id = sub(token, 1, 16), id_of(token)
      if id and not ids[process] then
        processes[#processes + 1], ids[process] = process, {'0 0'}
      end
      if id then table.insert(ids[process], id) end
    end
    call('DEL', queue)
    tail = nil
    call('ZREMRANGEBYSCORE', beats, '-inf', living)
    local text = type(told) == 'string' and '\n' .. told or ''
    for _, process in ipairs(processes) do tell(process, table.concat(ids[process], ' ') .. text) end
  end

  return waiters
end
