-- mutex: one holder at a time. The lock is a string with a ttl, as SET NX PX writes it, so locks of other libraries
-- count. It holds the token. If the token contains `:`, it holds only the value after the `:`, which other holders
-- may use too; the whole token is then stored behind the fence in the mark. After the lock has expired, this token may
-- stand beside the lock of another library, which has another value.
-- The mark is the first fence of the last grant. Each grant has 32 fences: a process hands the lock on to its own
-- waiters, each time with the next fence. The mark is kept for at least a week after the last grant or renewal, or
-- for the fence_ttl in the token of the holder. In the first case its number tells on which day its ttl was set. In
-- the second case, and if its number is ahead of the clock, a space is behind it, so that the next grant sets the ttl.
-- A kind that stores something else in the mark is not fenced: its fence is the time of the grant.
local find, whole, fence_ttl = string.find, kind.whole, kind.fence_ttl
local values, runs -- the values read: first the locks of all runs, then their marks
local lock, value, last -- of the current run: the lock, its value (false: none), the mark (nil: not read yet)
local freed, n_freed = {}, 0 -- locks to delete
local expires, px, fenced, digits -- the values written last: most runs of a call write the same
kind.fenced = true

function kind.read(marks)
  local names, keys = {}, kind.keys
  runs = #KEYS / keys
  for run = 1, runs do
    names[run] = KEYS[keys * (run - 1) + 1]
    if marks and kind.fenced then names[runs + run] = KEYS[keys * (run - 1) + 2] end
  end
  values = call('MGET', unpack(names))
end

-- Expired locks are missing. What an earlier run of this call wrote to the same key is known already.
function kind.begin(run)
  if holders ~= lock then lock, value, last = holders, values[run], values[runs + run] end
end

function kind.free()
  return not value
end

-- Returns the value in a token; nil: the token has no value.
local function value_of(token)
  local colon = find(token, ':', 17, true)
  return colon and string.sub(token, colon + 1)
end

local function read_mark()
  if last == nil then last = call('GET', mark) end
  return last
end

-- Returns whether a token holds the lock.
local function is_own(token)
  if not value or value == token then return value == token end
  return value == value_of(token) and string.match(read_mark() or '', ' (.*)') == token
end

kind.owns = is_own

-- A fence is higher than all before it, also than those of a server that lost its data: it is at least the time.
function kind.hold(token, expiry)
  local fence, content = now, value_of(token)
  if kind.fenced then
    local before = whole(read_mark())
    if before + 32 > now then fence = before + 32 end
    if fence ~= fenced then fenced, digits = fence, string.format('%d', fence) end
    local ttl, own = fence_ttl(token, expiry)
    if content or own or fence > now then
      last = digits .. ' ' .. (content and token or '')
      call('SET', mark, last, 'PX', ttl, 'GET')
    elseif not last or fence - fence % (24 * 3600 * 1000000) > before or #last ~= #digits then
      last = digits
      call('SET', mark, last, 'PX', ttl, 'GET') -- with GET, SET fails on a key of another type
    else
      last = digits
      call('SETRANGE', mark, '0', last) -- keeps the ttl, at half the cost of SET
    end
  end
  if expiry ~= expires then expires, px = expiry, string.format('%d', math.ceil((expiry - now) / 1000)) end
  content = content or token
  if n_freed > 0 and freed[n_freed] == lock then
    n_freed = n_freed - 1
    call('SET', lock, content, 'PX', px)
  elseif not call('SET', lock, content, 'PX', px, 'NX') then
    error('WRONGTYPE of a lock', 0) -- MGET reads it as missing, and it cannot be set
  end
  value = content
  return fence
end

function kind.forget(token)
  if value ~= token and not is_own(token) then return false end
  if value ~= token then -- another library may lock with the same value next
    last = string.match(last, '^%d+ ')
    call('DEL', lock) -- before SET, which a server that is out of memory refuses as a script's first write
    call('SET', mark, last, 'KEEPTTL')
  end
  value, n_freed = false, n_freed + 1
  freed[n_freed] = lock
  return true
end

-- Deletes, in one command, the locks that were released and not granted again.
function kind.write()
  if n_freed > 0 then call('DEL', unpack(freed, 1, n_freed)) end
end

function kind.more()
  new_lease()
  kind.one, kind.counts, kind.fits = true, 1, kind.free

  function kind.used()
    return value and 1 or 0
  end

  function kind.expires(token)
    if not is_own(token) then return nil end
    local left = call('PTTL', lock)
    return left < 0 and 0 or now + math.max(left, 1) * 1000
  end

  function kind.fence()
    return kind.fenced and whole(read_mark()) or now
  end

  function kind.list()
    local holder = call('GET', lock) -- fails on a key of another type, unlike MGET
    if not holder then return 0, {} end
    local token = kind.fenced and string.match(read_mark() or '', ' (.+)')
    local has_value = token and value_of(token) == holder
    if has_value then holder = token end
    local is_ours = has_value or string.match(holder, '^%x+%-()') == 18
    return 1, {holder, kind.expires(holder), is_ours and kind.fenced and whole(read_mark()) or 0}
  end

  function kind.extend(token, expiry)
    call('PEXPIRE', lock, math.ceil((expiry - now) / 1000))
    if kind.fenced then call('PEXPIRE', mark, (fence_ttl(token, expiry))) end
  end

  function kind.raise(fence, token, expiry)
    if fence <= whole(read_mark()) then return end
    local ttl, own = fence_ttl(token, expiry)
    last = string.format('%d', fence) .. (string.match(last or '', ' .*') or own and ' ' or '')
    call('DEL', mark) -- before SET, as in `forget`
    call('SET', mark, last, 'PX', ttl)
  end

  function kind.soonest()
    local left = value and call('PTTL', lock) or -1
    if left < 0 then return 0 end
    local ttl = lease.ttl_of(value)
    -- The ttl of a user's value stays as it is, even if the value looks like a token.
    if ttl and left - 1 >= ttl / 1000 and not (kind.fenced and find(read_mark() or '', ' .')) then
      left = math.ceil(ttl / 1000)
      call('PEXPIRE', lock, left)
    end
    return now + math.max(left, 1) * 1000
  end
end
