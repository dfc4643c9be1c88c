-- queue: who waits, in the order of arrival, and how what has become free is granted to them. Whoever no longer beats has
-- lost its place once it is its turn.
-- ARGV[1] is what the names of channels begin with, ARGV[2] for how long a grant to a waiter stands, if its time to live is
-- no shorter (µs), ARGV[3] for how long a waiter counts as alive after a heartbeat (µs), ARGV[4] for how long a tombstone
-- is kept (µs).
local living = '(4503599627370496' -- the scores of those who wait end here

-- Makes what there is to do with waiters. Only where somebody waits: it takes time that most calls can save.
local function new_waiters()
  kind.more()
  local waiters, format, sub = {}, string.format, string.sub
  local grant, tombstone = tonumber(ARGV[2]), tonumber(ARGV[4])
  local alive_until = format('%d', now + ARGV[3]) -- Redis takes longer to write a number than Lua

  -- Whether a token waits; whether it has a tombstone.
  local function look_up(token)
    local score = tonumber(call('ZSCORE', beats, token) or 0)
    return score > 0 and score < lift, score > lift + now
  end
  waiters.look_up = look_up

  -- How many wait before a token; nil or false: it has no place.
  function waiters.place(token)
    return call('LPOS', queue, token) or second and call('LPOS', second, token)
  end

  -- Takes a token out of where it waits; false if it does not.
  function waiters.leave(token)
    if not look_up(token) then return false end
    call('ZREM', beats, token)
    if call('LREM', queue, 1, token) == 0 and second then call('LREM', second, 1, token) end
    return true
  end

  -- Keeps the queue while anybody in it may be alive, and tombstones.
  function waiters.keep()
    local ttl = math.ceil(tombstone / 1000)
    call('PEXPIRE', beats, ttl)
    call('PEXPIRE', queue, ttl)
    if second then call('PEXPIRE', second, ttl) end
  end

  -- Takes note of a token that neither waits nor has a tombstone, and is to line up; whether it is one.
  function waiters.enter(token)
    return call('ZADD', beats, 'NX', alive_until, token) == 1
  end

  function waiters.line_up(token, rank, entered)
    if not entered then call('ZADD', beats, alive_until, token) end
    if call('RPUSH', rank > 0 and second or queue, token) == 1 then waiters.keep() end
  end

  -- Remembers that a token was withdrawn, and forgets whose time is over.
  function waiters.bury(token)
    call('ZREMRANGEBYSCORE', beats, lift, lift + now)
    call('ZADD', beats, lift + now + tombstone, token)
    waiters.keep()
  end

  -- Leaves those in a queue who are not `dead`: what it held before goes, and who is alive comes in behind it first, so
  -- that it keeps its time to live.
  local function rebuild(list, dead)
    local left, all = {}, call('LRANGE', list, 0, -1)
    for _, token in ipairs(all) do
      if not dead[token] then left[#left + 1] = token end
    end
    for i = 1, #left, 4000 do call('RPUSH', list, unpack(left, i, math.min(i + 3999, #left))) end
    call('LTRIM', list, #all, -1)
  end

  -- Takes out all who no longer beat.
  function waiters.drop_dead()
    local dead = call('ZRANGEBYSCORE', beats, '-inf', now)
    if #dead <= 4 then
      for _, token in ipairs(dead) do waiters.leave(token) end
      return
    end
    for _, token in ipairs(dead) do dead[token] = true end
    rebuild(queue, dead)
    if second then rebuild(second, dead) end
    call('ZREMRANGEBYSCORE', beats, '-inf', now)
  end

  -- Tells a process something: in the reply, if that is who asks. The message: expiry (µs), fence and id of who holds by
  -- now; or 0, 0 and the ids of who is to ask anew, and perhaps on another line what they are told.
  local function tell(process, text)
    if process == sub(asker, 1, 16) then
      if heard == 0 then heard = {} end
      heard[#heard + 1] = text
    else
      call('PUBLISH', ARGV[1] .. process, text)
    end
  end

  local function id_of(token)
    return tonumber(string.match(token, '^%x+', 18) or '', 16)
  end

  local function head()
    local token = call('LINDEX', queue, 0)
    if token or not second then return token, queue end
    return call('LINDEX', second, 0), second
  end

  -- Grants while the first in the queue fits.
  function waiters.grant()
    local token, list, turn
    while not (kind.one and kind.used() > 0) do
      token, list, turn = (kind.head or head)(turn)
      if not token then return end
      local score = tonumber(call('ZSCORE', beats, token) or 0)
      local lives = score > now and score < lift
      if lives and not kind.fits(token) then return end
      call('ZREM', beats, token)
      call('LPOP', list)
      if lives then
        local expiry = now + math.min(lease.ttl_of(token) or grant, grant)
        local fence, id = kind.hold(token, expiry), id_of(token)
        if id then tell(sub(token, 1, 16), format('%d %d %d', expiry, fence, id)) end
      end
    end
  end

  -- Empties the queue: those who wait are to ask anew, unless they are `told` all there is to know.
  function waiters.dismiss(told)
    local processes, ids, tokens = {}, {}, call('LRANGE', queue, 0, -1)
    if #tokens == 0 then return end
    for _, token in ipairs(tokens) do
      local process, id = sub(token, 1, 16), id_of(token)
      if id and not ids[process] then
        processes[#processes + 1], ids[process] = process, {'0 0'}
      end
      if id then table.insert(ids[process], format('%d', id)) end
    end
    call('DEL', queue)
    call('ZREMRANGEBYSCORE', beats, '-inf', living)
    local text = type(told) == 'string' and '\n' .. told or ''
    for _, process in ipairs(processes) do tell(process, table.concat(ids[process], ' ') .. text) end
  end

  return waiters
end
