-- mutex: one holder at a time. The lock is a string with a ttl, as SET NX PX writes it, so locks of other libraries
-- count. It contains the token. If the token contains `:`, the lock contains only the value after the `:`, which other
-- holders may use too; the whole token is then stored after the fence in the mark. After the lock has expired, this
-- token may remain while another library holds the lock, with another value.
-- The mark is the first fence of the last grant. Each grant has 32 fences: a process hands the lock on to its own
-- waiters, each time with the next fence. The mark is kept for at least a week after the last grant or renewal, or for
-- the fence_ttl in the token of the holder. In the first case its number shows on which day its ttl was set. In the
-- second case, and if its number is ahead of the clock, a space follows it, so that the next grant sets the ttl. A kind
-- that stores other data in the mark is not fenced: its fence is the time of the grant.
-- The rules of all holders, which acquire, runs and care call (`?`: not all kinds have it):
--   one, timed        whether there is one holder at most; whether a release needs the time
--   counts            the highest rank whose waiters count as waiting for a lease
--   classes           ? whether only the waiters of the same rank and of lower ranks count for `max_waiters`
--   take(c, kind, lock, mark, token, now, ttl, px)   makes the token a holder if it certainly fits; returns its fence, or
--                     nil. `ttl`: of the lease (µs), `px`: the same in ms. c: the state, if there is one already
--   hold(c, token, expiry, granted)   makes it a holder; returns its fence. `granted`: it was a waiter
--   free(c), fits(c, token, rank)     whether there is no holder; whether the token can hold beside the current holders
--   forget(c, lock, mark, token, now, batch)   removes it from the holders; returns whether it was one. c: as for `take`;
--                     `batch`: see runs
--   sweep(c)          ? removes the holders whose leases have expired
--   expires(c, token) returns when its lease expires; nil: it does not hold
--   fence(c)          returns the fence of the holder
--   extend(c, token, expiry)   sets the expiry of its lease
--   confirm(c, token, expiry)  ? its lease is renewed, and not extended
--   raise(c, fence, token, expiry)   ? makes the next fence higher than this one; the token and its expiry: of the holder
--   list(c, most)     returns the sum of the held weights, and the token, expiry and fence of each holder, at most `most`
--                     holders. Changes nothing
--   soonest(c)        returns when the next lease ends; 0: unknown. No lease lasts longer than the ttl in its token. A
--                     longer one was granted before the server's clock was set back: it is cut to the ttl
--   head(c, turn)     ? returns the token that is served first, whether the second rank is served now, and its rank.
--                     Without this rule, the token with the lowest score is served first
--   turns             ? whether grants change which rank is served next
-- For holders whose waiters may have another order, and settings that may change while they wait: see turns and
-- settings.
mutex = {one = true, counts = 1}
local day = 86400000000 -- µs

-- Returns the content of a lock; false: nothing, or it is a key of another type, which cannot be set.
function mutex.read(lock)
  local value = attempt('GET', lock)
  if not value or not value.err then return value end
  return state.failure(value) and error(value.err, 0)
end

-- The state has `value`, the content of the lock (false: nothing), and `last`, the mark.
function mutex.value(c)
  local value = c.value
  if value == nil then
    value = mutex.read(c.lock) or false
    c.value = value
  end
  return value
end

function mutex.last(c)
  if c.last == nil then c.last = call('GET', c.mark) end
  return c.last
end

-- Returns the value in a token; nil: the token has no value.
function mutex.value_of(text)
  local colon = find(text, ':', 17, true)
  return colon and sub(text, colon + 1)
end

function mutex.free(c)
  return not mutex.value(c)
end

mutex.fits = mutex.free

function mutex.owns(c, text)
  local value = mutex.value(c)
  if not value or value == text then return value == text end
  return value == mutex.value_of(text) and match(mutex.last(c) or '', ' (.*)') == text
end

-- Writes the fence of a grant. Returns the new content of the mark. `before`: the previous fence.
local function write_mark(lock, mark, text, now, ttl, fence, last, before, is_special)
  local digits, saved = format('%d', fence)
  if is_special or fence > now then
    digits = digits .. ' ' .. (mutex.value_of(text) and text or '')
    saved = attempt('SET', mark, digits, 'PX', (token.fence_ttl(text, now + ttl, now)), 'GET')
  elseif not last or #last ~= #digits or fence - fence % day > before then
    -- 8 days. With GET, SET fails on a key of another type.
    saved = attempt('SET', mark, digits, 'PX', '691200000', 'GET')
  else
    saved = attempt('SETRANGE', mark, '0', digits) -- keeps the ttl, at half the cost of SET
    if saved == #digits then return digits end
  end
  if type(saved) == 'table' and saved.err then
    call('DEL', lock)
    error(saved.err, 0)
  end
  return digits
end

-- A fence is higher than all earlier ones, including those of a server that lost its data: it is at least the time.
function mutex.take(c, kind, lock, mark, text, now, ttl, px)
  if c and c.value then return nil end
  local fence, last, before, content = now, nil, nil, text
  local is_special = kind.fenced and (find(text, ':', 17, true) or find(text, '~', 17, true))
  if is_special then content = mutex.value_of(text) or text end
  if kind.fenced then
    if c then last = mutex.last(c) else last = call('GET', mark) end
    before = state.whole(last)
    if before + 32 > now then fence = before + 32 end
  end
  local set = attempt('SET', lock, content, 'PX', px, 'NX')
  if not set or set.err and call('GET', lock) then return nil end -- the server refuses writes, but the lock has a holder
  if set.err then error(set.err, 0) end
  if before then
    last = write_mark(lock, mark, text, now, ttl, fence, last, before, is_special)
  end
  if c then c.value, c.last = content, last end
  return fence
end

function mutex.hold(c, text, expiry)
  local ttl = expiry - c.now
  local px = format('%d', ceil(ttl / 1000))
  return mutex.take(c, c.kind, c.lock, c.mark, text, c.now, ttl, px) or error('WRONGTYPE of a lock', 0)
end

-- Deletes a lock; at the end of the call, if there is a `batch`. Returns false, the new content of the lock.
function mutex.unlock(lock, batch)
  if batch then batch.freed[#batch.freed + 1] = lock else call('DEL', lock) end
  return false
end

function mutex.forget(c, lock, mark, text, _, batch)
  local value = c and c.value
  if value == nil then value = mutex.read(lock) or false end
  if c then c.value = value end
  if value == text then
    mutex.unlock(lock, batch)
  elseif value and value == mutex.value_of(text) then
    local last = call('GET', mark) or ''
    if match(last, ' (.*)') ~= text then return false end
    last = match(last, '^%d+ ') -- another library may lock with the same value next
    call('DEL', lock) -- before SET, which a server that is out of memory refuses as a script's first write
    call('SET', mark, last, 'KEEPTTL')
    if c then c.last = last end
  else
    return false
  end
  if c then c.value = false end
  return true
end

function mutex.expires(c, text)
  if not mutex.owns(c, text) then return nil end
  local left = call('PTTL', c.lock)
  return left < 0 and 0 or c.now + max(left, 1) * 1000
end

function mutex.fence(c)
  return c.kind.fenced and state.whole(mutex.last(c)) or c.now
end

function mutex.list(c)
  local holder = call('GET', c.lock) -- fails on a key of another type
  if not holder then return 0, {} end
  local text = c.kind.fenced and match(mutex.last(c) or '', ' (.+)')
  local has_value = text and mutex.value_of(text) == holder
  if has_value then holder = text end
  local is_ours = has_value or match(holder, '^%x+%-()') == 18
  return 1, {holder, mutex.expires(c, holder), is_ours and c.kind.fenced and state.whole(mutex.last(c)) or 0}
end

function mutex.extend(c, text, expiry)
  call('PEXPIRE', c.lock, ceil((expiry - c.now) / 1000))
  if c.kind.fenced then call('PEXPIRE', c.mark, (token.fence_ttl(text, expiry, c.now))) end
end

function mutex.raise(c, fence, text, expiry)
  if not c.kind.fenced or fence <= state.whole(mutex.last(c)) then return end
  local ttl, own = token.fence_ttl(text, expiry, c.now)
  c.last = format('%d', fence) .. (match(c.last or '', ' .*') or own and ' ' or '')
  call('DEL', c.mark) -- before SET, as in `forget`
  call('SET', c.mark, c.last, 'PX', ttl)
end

function mutex.soonest(c)
  local value = mutex.value(c)
  local left = value and call('PTTL', c.lock) or -1
  if left < 0 then return 0 end
  local ttl = token.ttl(value)
  -- The ttl of a lock with a user's value is not changed, even if the value looks like a token.
  if ttl and left - 1 >= ttl / 1000 and not (c.kind.fenced and find(mutex.last(c) or '', ' .')) then
    left = ceil(ttl / 1000)
    call('PEXPIRE', c.lock, left)
  end
  return c.now + max(left, 1) * 1000
end

kinds.mutex = {holders = mutex, keys = 4, fenced = true, ttl = 4, looks = 0}
