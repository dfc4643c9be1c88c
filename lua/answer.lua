-- answer: the answer of a flight, stored beside the lock for a while. The mark is `entered fresh stale codec bytes`:
-- when the answer was stored, how long it is fresh after that, how long it is served stale while a caller computes a
-- fresh one (all µs), the name of the codec that encoded the bytes, and the bytes. A caller that first sent a query
-- while the answer was fresh may get it as long as it is kept. An answer whose fresh time is zero is only for the
-- callers that wait when it is stored. An answer that was stored later than now is not served: the clock was set back,
-- so its age is unknown.
-- Bytes that begin with `+` are an answer; other bytes record that the work failed, or that nothing is shared.
-- Arguments  for all runs: the codec; to look: `since stale ahead`: when the caller first sent a query (µs, 0: now),
--            whether it accepts a stale answer (0, 1), and how long before its end (µs) an answer counts as stale, and
--            is accepted, if it begins with `+`; to enter: `fresh stale` (see the mark; stale is at least fresh), how
--            long the answer is kept (ms), its bytes
local small = 1024 -- bytes: such answers are stored even if the server is out of memory
local published = 8192 -- bytes: larger answers are not part of the message: the waiters read them

-- Finds `fresh stale bytes`, with the times counted from now, or `other` if another codec wrote the answer. If the
-- answer was fresh at any time since the caller's first query, the work is done.
function answer.look(keys, first, args, at, now, bypass)
  local stored = call('GET', keys[first + 1])
  if not stored then return nil end
  local entered, fresh, stale, name, bytes = match(stored, '^(%d+) (%d+) (%d+) (%S+) ()')
  if not entered then return 'other' end
  local since, takes_stale, ahead = match(args[at], '^(%d+) (%d) (%d+)$')
  local age, asked = now - entered, number(since)
  local good = entered + fresh > (asked > 0 and min(asked, now) or now)
  if age < 0 or not good and (stale - age <= 0 or takes_stale == '0') then return nil end
  if name ~= args[4] then return 'other' end
  local left = fresh - age
  local text = format('%d %d ', left, stale - age) .. sub(stored, bytes)
  if bypass then return text end
  local early = left > 0 and left <= number(ahead) and sub(stored, bytes, bytes) == '+'
  return text, good and not early
end

function answer.is_small(args, at)
  return #args[at + 2] <= small
end

function answer.enter(keys, first, args, at, now, holding, waiting)
  if not holding then return nil, false end
  local codec, spans, bytes = args[4], args[at], args[at + 2]
  if spans == '0 0' and call('EXISTS', keys[first + 2]) == 0 then return nil, false end
  call('SET', keys[first + 1], format('%d ', now) .. spans .. ' ' .. codec .. ' ' .. bytes, 'PX', args[at + 1])
  return nil, not waiting or #bytes > published or codec .. ' ' .. spans .. ' ' .. bytes
end

kinds.flight = {holders = mutex, outcome = answer, keys = 4, ttl = 5, looks = 1, enters = 3}

-- Returns the state of the answer to a key.
-- Keys       those of the lease; the mark is the answer
-- Arguments  how many bytes to return
-- Returns    now (µs); the length of the stored string (0: there is none; -1: it is of another type); the time until
--            it expires (ms); its first bytes
function operations.look_at_answer(keys, args)
  local now, length = clock(), attempt('STRLEN', keys[2])
  if type(length) == 'table' then return state.refused(now, length, 0, '') end
  return {now, length, call('PTTL', keys[2]), call('GETRANGE', keys[2], 0, args[2] - 1)}
end

-- Removes the answer to a key, even while a run is in progress, and notifies all processes.
-- Keys       those of the lease; the mark is the answer
-- Arguments  the channel of all processes; the message
-- Returns    now (µs)
function operations.forget_answer(keys, args)
  call('DEL', keys[2])
  call('PUBLISH', args[2], args[3])
  return {clock()}
end
