-- grants: grants free leases to waiters, and notifies them.

-- Publishes a message to a process. If the prefix of the channel names ends in a hash tag, the channel may exist only
-- on this node of a Cluster. Otherwise, or if it has no subscriber there, the message goes to all nodes. If publishing
-- is denied, the process detects the change by polling.
function grants.publish(c, process, text)
  local all, heard_by = match(c.channels, '^(.*){%d+}:$'), nil
  if all then heard_by = attempt('SPUBLISH', c.channels .. process, text) end
  if type(heard_by) == 'number' and heard_by > 0 then return end
  attempt('PUBLISH', (all or c.channels) .. process, text)
end

-- Sends a message to a process: in the reply if the caller is of that process, otherwise published. The message is
-- `expiry fence id` of a waiter that holds now (expiry in µs); or `0 0` and the ids of waiters that must acquire again,
-- optionally with the outcome in a second line; or `0 1 id` of a waiter that is refused because the queue is full, or
-- `0 2 id`, because the limit is 0. Ids are hexadecimal, as in tokens: they exceed 2^53.
function grants.tell(c, process, text)
  if process ~= sub(c.asker, 1, 16) then return grants.publish(c, process, text) end
  local heard = c.heard
  if heard then heard[#heard + 1] = text else c.heard = {text} end
end

-- Removes a waiter, and refuses it.
function grants.refuse(c, text, why)
  local id = token.id(text)
  call('ZREM', c.beats, text)
  queue.remove(c, text)
  if id then grants.tell(c, token.process(text), format('0 %d ', why) .. id) end
end

-- Refuses the last waiter of the longest line of a rank, for a caller whose line is empty. Returns whether there was one.
function grants.make_room(c, text, rank)
  local longest = c.holders.longest
  local other = longest and longest(c, text, rank)
  if other then grants.refuse(c, other, 1) end
  return other
end

-- Makes a waiter a holder.
local function give(c, text)
  local grant = c.grant
  local expiry = c.now + min(token.ttl(text) or grant, grant)
  local fence, id = c.holders.hold(c, text, expiry, true), token.id(text)
  if id then grants.tell(c, sub(text, 1, 16), format('%d %d ', expiry, fence) .. id) end
end

-- Grants leases while the first waiter in the queue fits. Returns whether waiters were put behind all others.
local function serve_queue(c)
  local holders, now, turn, have_lapsed = c.holders, c.now, nil, nil
  c.tail = nil
  while not (holders.one and not holders.free(c)) do
    local text, rank
    if holders.head then text, turn, rank = holders.head(c, turn) else text = call('ZRANGE', c.queue, 0, 0)[1] end
    if not text then break end
    local times = call('ZMSCORE', c.beats, text, sub(text, 1, 16))
    local score, lapsed = number(times[1] or 0), number(times[2] or 0)
    if lapsed > c.alive_until + lift then lapsed = 0 end -- from before the clock was set back
    local lives = score > now and score < lift
    if lives and rank == 15 then break end
    if lives and score + lift < lapsed then
      queue.put_behind(c, text)
      have_lapsed = true
    elseif lives and holders.is_closed and holders.is_closed(c, text, rank) then
      grants.refuse(c, text, 2)
    else
      if lives and not holders.fits(c, text, rank) then break end
      call('ZREM', c.beats, text)
      queue.remove(c, text, lives)
      if lives then give(c, text) end
    end
  end
  return have_lapsed
end

-- Grants free leases.
function grants.serve(c)
  queue.open(c)
  if not serve_queue(c) then return end
  queue.keep(c) -- the queue may have been empty for a moment
  queue.drop_behind(c)
end

-- Empties the queue. Notifies the waiters to acquire again, or sends them the outcome if `told` is a text.
function grants.dismiss(c, told)
  local processes, ids, tokens = {}, {}, call('ZRANGE', c.queue, 0, -1)
  if #tokens == 0 then return end
  for _, text in ipairs(tokens) do
    local process, id = token.process(text), token.id(text)
    if id and not ids[process] then
      processes[#processes + 1], ids[process] = process, {'0 0'}
    end
    if id then table.insert(ids[process], id) end
  end
  call('DEL', c.queue)
  c.tail = nil
  call('ZREMRANGEBYSCORE', c.beats, '-inf', queue.living)
  local text = type(told) == 'string' and '\n' .. told or ''
  for _, process in ipairs(processes) do grants.tell(c, process, table.concat(ids[process], ' ') .. text) end
end
