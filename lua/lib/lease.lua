-- lease: the shared part of all lease scripts: the keys of a run, the rules of a kind of lease, and the reply.
-- KEYS      per run, as many keys as the kind has:
--           holders  who holds the lease (mutex: the lock itself)
--           mark     what the kind stores beside the holders: a fence, a sum, an answer, a filter
--           queue    ZSET: each waiter -> its score: the lowest is served first
--           beats    ZSET: each waiter -> until when it counts as alive (µs); each tombstone (a withdrawn token) ->
--                    until when it is kept (µs) plus 2^52
--           then the keys that the kind adds. The runs of one key stand next to each other.
-- A token is 16 hexadecimal digits that name the process, `-`, the id (hexadecimal), `.` and the ttl (hexadecimal, µs),
-- `~` and the fence_ttl (hexadecimal, ms), and what the kind adds. The id, the ttl and the fence_ttl may be missing.
-- Times are whole µs below 2^53: Redis writes such numbers exactly, in commands and in replies.
local call = redis.call
local lift = 4503599627370496 -- 2^52: above every time. ZSET members with higher scores neither hold nor wait
local ranks, plain = 562949953421312, 140737488355328 -- 2^49: the scores of one rank; 2^47: of those, without a flow
local holders, mark, queue, beats, fifth, sixth -- the keys of the current run
local asker -- the token of the current run
local heard, found -- the messages to the asker's process, and what `look` found, or why `enter` entered nothing

-- The rules of a kind of lease. The Lua file of the kind fills them in. These are all that a free key needs; `?`: some
-- kinds have none:
--   keys          how many keys a run has
--   read(marks)   ? reads the keys of all runs in advance; `marks`: also their marks, if fences will be needed
--   begin(run)    ? begins a run
--   free(token)   returns whether the token can hold: there is no holder, or surely room
--   hold(token, expiry, granted)   makes the token a holder; returns its fence. `granted`: it was a waiter
--   forget(token)           removes the token from the holders; returns whether it was one
--   write()       ? writes what the runs left to write
-- The outcomes of earlier leases, for kinds that keep them. `base`: the first argument that all runs share in ARGV; `at`:
-- the first of the run:
--   arguments     how many arguments an acquire takes, and `enter`
--   look(bypass, base, at)  returns what was found, and whether the work is done: true: done; false: done for a caller
--                 that would have to wait; nil: not done
--   owns(token)   returns whether the token holds
--   enter(holding, base, at)   returns the obstacle, if any; what was entered (false: nothing; a text: what the waiters
--                 are told); how full the filter is
-- `more()` adds the rules below. They take time to create, and most calls do not need them:
--   one           whether there is only one holder at a time
--   fenced        whether each grant has its own fences, which the mark stores
--   counts        the highest rank whose waiters count as waiting for a lease
--   classes       ? whether only the waiters of the same rank and of those before it count for `max_waiters`
--   sweep()       removes the holders whose leases have expired
--   used()        returns the sum of the weights that are held
--   expires(token)          returns when the lease of the token expires; nil: it does not hold
--   fence()       returns the fence of the holder
--   fits(token, rank)       returns whether the token can hold in addition to the holders
--   extend(token, expiry)   sets the expiry of its lease
--   confirm(token, expiry)  ? the lease is renewed, and not extended
--   raise(fence, token, expiry)   makes the next fence higher than this one; the token and its expiry: of the holder
--   list(most)    returns the sum of the weights that are held, and the token, expiry and fence of each holder, at
--                 most of so many. Changes nothing
--   soonest()     returns when the next lease ends; 0: unknown. No lease lasts longer than the ttl in its token. A
--                 longer one was granted before the server's clock was set back: it is cut to the ttl
--   head(turn)    returns the token that is served first, whether the second rank has its turn now, and its rank.
--                 Without this rule, that is the token with the lowest score
--   turns         ? whether grants change which rank has its turn
-- For kinds whose waiters may have another order, and what may change while they wait:
--   line_up(token, rank, placed)   returns whether the keys have to be kept for longer; and if the token has another order,
--                 its score, and how many waiters may be served before it, if that is asked for
--   starts(rank)            a rank gets its first waiter in the order of arrival
--   due(rank)               returns whether waiters of a higher rank are served before those of this one now
--   is_ordered(token)       returns whether the token has another order
--   drop(token, granted)    removes a waiter from the queue; `granted`: it is granted a lease
--   longest(token, rank)    returns the last waiter of the longest line, for a token whose line is empty
--   tell(text, waiting, waits), tell_first(text)   hears what a caller tells: see lib/settings
--   is_closed(token, rank)  returns whether the limit for the token is 0
local kind = {keys = 4}

-- Returns the whole number that the text is, or begins with before a space; 0 for a missing key.
function kind.whole(text)
  local number = tonumber(text or 0) or tonumber(string.match(text, '^(%d+) ') or '')
  if number and number % 1 == 0 and number >= 0 and number < 9007199254740992 then return number end
  error('WRONGTYPE of a number', 0)
end

-- Returns how long the mark with the fence is kept (ms), and whether the token sets this. Never less than its lease.
function kind.fence_ttl(token, expiry)
  local ttl = string.match(token, '^%x+%.%x+~(%x+)', 18)
  if not ttl then return 8 * 24 * 3600 * 1000 end
  return math.max(tonumber(ttl, 16), math.ceil((expiry - now) / 1000) + 1), true
end

-- Returns the reply for a run that failed; nil: -1 for this run alone, since a key is of another type, or does not
-- hold a number where one belongs.
local function failure(problem)
  local text = type(problem) == 'table' and problem.err or problem
  if string.find(text, 'WRONGTYPE', 1, true) or string.find(text, 'not an integer', 1, true) then return nil end
  return {err = text}
end

-- The helpers of rules and scripts; nil until `new_lease` runs. lib/queue adds `channels` and `tombstone`.
local lease
local function new_lease()
  lease = {}

  -- Returns the ttl in a token (µs); false: there is none, such as in a value that another library wrote.
  function lease.ttl_of(token)
    local at, ttl = string.match(token, '^%x+%-()%x+%.(%x+)')
    return at == 18 and tonumber(ttl, 16)
  end

  -- Publishes a message to a process. If the prefix of the channel names ends in a hash tag, the channel
  -- may be one of this node of a Cluster alone. If it is not, or nobody listens there, the message goes to all nodes.
  -- If it is denied, the process asks in time.
  function lease.publish(process, text)
    local all, heard_by = string.match(lease.channels, '^(.*){%d+}:$'), nil
    if all then heard_by = redis.pcall('SPUBLISH', lease.channels .. process, text) end
    if type(heard_by) == 'number' and heard_by > 0 then return end
    redis.pcall('PUBLISH', (all or lease.channels) .. process, text)
  end

  -- Returns how many waiters are ahead of a new waiter of this rank.
  function lease.ahead(rank)
    if kind.one then return call('ZCARD', queue) end
    return call('ZCOUNT', queue, '-inf', string.format('(%d', (rank + 1) * ranks))
  end

  -- Returns the first waiter of a rank, or the last one without a flow, and its score; an empty list: there is none.
  function lease.edge(rank, last)
    local all = last and call('ZRANGE', queue, -1, -1, 'WITHSCORES')
    local highest = all and tonumber(all[2] or 0)
    -- Mostly, all waiters are of one rank.
    if all and highest < rank * ranks then return {} end
    if all and highest < rank * ranks + plain then return all end
    local from = string.format('%d', rank * ranks)
    if last then
      local to = string.format('(%d', rank * ranks + plain)
      return call('ZRANGE', queue, to, from, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
    end
    local to = string.format('(%d', (rank + 1) * ranks)
    return call('ZRANGE', queue, from, to, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  end

  -- The rules of kinds whose holders are a ZSET, token -> expiry; plus a half if the lease was granted to a waiter, and not
  -- renewed since.
  function lease.expires(token)
    local expiry = math.floor(call('ZSCORE', holders, token) or 0)
    return expiry > now and expiry or nil
  end

  -- The score of a holder that was granted its lease, and has not renewed it.
  function lease.granted(expiry)
    return string.format('%d.5', expiry)
  end

  -- A lease that was granted is renewed.
  function lease.confirm(token, expiry)
    call('ZADD', holders, 'XX', string.format('%d', expiry), token)
  end

  -- A grant has expired. Its process counts as one that stopped sending heartbeats until it sends the next one.
  function lease.lapse(token, score)
    if score % 1 == 0 or not lease.alive or call('EXISTS', queue) == 0 then return end
    call('ZADD', beats, 'GT', string.format('%d', lift + math.floor(score) + lease.alive), string.sub(token, 1, 16))
    if call('PTTL', beats) == -1 then call('PEXPIRE', beats, math.ceil(lease.tombstone / 1000)) end -- it was evicted
  end

  function lease.list(most, fence)
    local from = string.format('(%d.5', now)
    local members = call('ZRANGE', holders, from, '(4503599627370496', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
    local list = {}
    for i = 1, #members, 2 do
      list[#list + 1], list[#list + 2], list[#list + 3] = members[i], math.floor(members[i + 1]), fence
    end
    return list
  end

  function lease.soonest()
    local first = call('ZRANGE', holders, 0, 0, 'WITHSCORES')
    local last = first[1] and call('ZRANGE', holders, lift, 0, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES') or first
    local function lasts_too_long(token, expiry)
      local ttl = token and lease.ttl_of(token)
      return ttl and math.floor(expiry) > now + ttl
    end
    if not (lasts_too_long(unpack(first)) or lasts_too_long(unpack(last))) then return math.floor(first[2] or 0) end
    local all = call('ZRANGE', holders, 0, -1, 'WITHSCORES')
    for i = 1, #all, 2 do
      if lasts_too_long(all[i], all[i + 1]) then call('ZADD', holders, now + lease.ttl_of(all[i]), all[i]) end
    end
    return math.floor(call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2])
  end

  -- Runs `step` for each run, and appends the first `width` values that it returns to the reply. `marks`: see `kind.read`.
  function lease.each(width, step, marks)
    local all, keys = {now}, kind.keys
    if kind.read then kind.read(marks) end
    for run = 1, #KEYS / keys do
      holders, mark, queue, beats, fifth, sixth = unpack(KEYS, keys * (run - 1) + 1, keys * run)
      heard = 0
      if kind.begin then kind.begin(run) end
      local values = {pcall(step, run)}
      if not values[1] then
        all = failure(values[2]) or all
        if all.err then break end
        values[2] = -1
      end
      for i = 2, width + 1 do all[#all + 1] = values[i] or 0 end
    end
    if kind.write then kind.write() end
    return all
  end
end
