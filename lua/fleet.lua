-- fleet: settings of the whole fleet, the processes that are alive, and the keys that are refused most.

-- Returns the last versions of a setting.
-- Keys       list, the versions (see `set`), the oldest first
-- Arguments  how many to return at most, at least 1
-- Returns    now (µs); 1, or -1 if the key is of another type; the versions, the oldest first
function operations.read_setting(keys, args)
  local now, versions = clock(), attempt('LRANGE', keys[1], -args[2], -1)
  if versions.err then return state.refused(now, versions, {}) end
  return {now, 1, versions}
end

-- Returns the number, the time and the value of a version whose number and time are less than `most`.
local function parts(version, most)
  local nth, at, text = match(version, '^(%d+) (%d+) %x+\n[^\n]*\n([-+].*)$')
  nth, at = number(nth or '') or most, number(at or '') or most
  if nth < most and at < most then return nth, at, text end
end

-- Adds a version of a setting if the last one is the expected one, and notifies all processes.
-- Keys       list, the versions, the oldest first: `number at id`, who, and `+text` or `-`, separated by line feeds
-- Arguments  the number of the expected version, 0: none; the id of this call; who sets it; the value, `+text`, or
--            empty: that of the version before the last, `-` if there is none; how many versions are kept; the channel
--            of all processes; the beginning of the message
-- Returns    now (µs); 1: it was added, also by an earlier copy of this call; 0: the last version is another one;
--            -1: the key is of another type; -2: the last version, or the one to go back to, is not recognised; then the
--            added or the last version, empty if there is none
-- Writes     the list, without a ttl
function operations.set_setting(keys, args)
  local now, expected, id, value, kept = clock(), number(args[2]), args[3], args[5], args[6]
  local versions = attempt('LRANGE', keys[1], -kept, -1)
  if versions.err then return state.refused(now, versions, '') end
  for _, version in ipairs(versions) do
    if match(version, '^%d+ %d+ (%x+)\n') == id then return {now, 1, version} end
  end
  local last, before = versions[#versions], versions[#versions - 1]
  local nth, at = 0, 0
  if last then nth, at = parts(last, lift) end
  if not nth then return {now, -2, ''} end
  if nth ~= expected then return {now, 0, last or ''} end
  if value == '' then value = before == nil and '-' or select(3, parts(before, 2 * lift)) end
  if not value then return {now, -2, ''} end
  local added = format('%.0f %.0f %s\n%s\n%s', nth + 1, max(now, at + 1), id, args[4], value)
  local saved = attempt('RPUSH', keys[1], added)
  if type(saved) == 'table' then return saved end
  call('LTRIM', keys[1], -kept, -1)
  -- The user may lack the permission: the other processes then find the version at their next read.
  attempt('PUBLISH', args[7], args[8] .. added)
  return {now, 1, added}
end

-- Records that a process is alive or leaves, and counts the processes that are alive.
-- Keys       ZSET: process -> when it was alive last (µs)
-- Arguments  the process; 1: it leaves, 0: it is alive; how long a process counts after it was alive (µs); how many are kept
-- Returns    now (µs); how many processes are alive, or -1 if the key is of another type
-- Writes     the ZSET, with a ttl
function operations.count_members(keys, args)
  local now, process, leaves, ttl, most = clock(), args[2], args[3] == '1', number(args[4]), number(args[5])
  local ended = attempt('ZREMRANGEBYSCORE', keys[1], '-inf', format('(%.0f', now - ttl))
  if type(ended) == 'table' then return state.refused(now, ended) end
  -- The clock was set back, or another program wrote the time.
  call('ZREMRANGEBYSCORE', keys[1], format('(%.0f', now + ttl), '+inf')
  local count = call('ZCARD', keys[1])
  if leaves then return {now, count - call('ZREM', keys[1], process)} end
  if count < most or call('ZSCORE', keys[1], process) then
    local added = attempt('ZADD', keys[1], now, process)
    if type(added) == 'table' then return added end
    count = count + added
  end
  call('PEXPIRE', keys[1], ttl / 1000)
  return {now, count}
end

-- Stores which keys a process has refused most.
-- Keys       string, the list
-- Arguments  the list, of at most 32 keys; its ttl (ms)
-- Returns    now (µs); 1
function operations.note_refused(keys, args)
  call('SET', keys[1], args[2], 'PX', args[3])
  return {clock(), 1}
end

-- Returns which keys a process has refused most.
-- Keys       string, the list
-- Arguments  how many bytes to return at most
-- Returns    now (µs); 1, or -1 if the key is of another type; the list, empty if there is none
function operations.look_at_refused(keys, args)
  local now, list = clock(), attempt('GETRANGE', keys[1], 0, args[2] - 1)
  if type(list) == 'table' then return state.refused(now, list, '') end
  return {now, 1, list}
end
