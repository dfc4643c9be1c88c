-- lease: what the scripts of leases share: the keys of a run, what makes up a kind of lease, and how runs are answered.
-- KEYS      per run as many as the kind has: holders (mutex: the lock); mark (what the kind keeps beside them: a fence,
--           a sum, an answer, a filter); queue (LIST of tokens: who waits); beats (ZSET: each that waits -> until when
--           it counts as alive, µs; each tombstone, a token that was withdrawn -> until when it is kept, µs, plus 2^52);
--           then, or in place of the mark, second (LIST: who goes after those in the queue); then what the kind adds.
--           The runs of one key stand side by side.
-- A token is 16 hexadecimal digits that name its process, `-`, its id (hexadecimal), `.` and its time to live
-- (hexadecimal, µs; both may be missing), and what the kind adds.
-- Times are whole µs below 2^53: Redis writes such numbers exactly, in commands and in replies.
local call = redis.call
local lift = 4503599627370496 -- 2^52: above every time. What has such a score in a ZSET is neither a holder nor waits
local holders, mark, queue, beats, fifth, sixth, second -- the keys of the run at hand
local asker -- the token that asks
local heard, found -- messages to its process, and what its run found

-- The rules of a kind of lease, which its piece fills in. All that a free key needs:
local kind = {
  keys = 4, -- how many keys a run has
  two = false, -- where among them the second queue is, if there are two
  scope = 0, -- how many arguments all runs share; `base`: where they begin in ARGV
  read = false, -- (marks) reads ahead for all runs; also their marks, if fences will be needed
  begin = false, -- (run) begins a run
  free = false, -- (token) whether nobody holds, and it can
  hold = false, -- (token, expiry, free) makes it a holder; its fence
  forget = false, -- (token) makes it no holder; whether it was one
  write = false, -- () ends what the runs did
  -- What came of leases before, if that is kept; `at`: where the arguments of the run begin in ARGV
  queries = false, -- (base) how many arguments a look has
  look = false, -- (bypass, base, at) what is found; whether nothing is left to do (false: not for those who would have
  -- to wait; nil: there is)
  entries = false, -- (base) how many arguments an entry has
  enter = false, -- (holding, base, at) what is in the way; what was entered (false: nothing; a text: what those who
  -- wait are told); how full it is there
  more = false, -- () adds the other rules: making them takes time that most calls can save
  --   one           whether one is all that can hold
  --   fenced        whether each grant has fences of its own, which the mark keeps
  --   counts        up to which rank those who wait are to hold something
  --   sweep()       drops holders whose leases are over
  --   used()        how much is held
  --   owns(token)   whether it holds, for kinds that keep what came of leases
  --   expires(token)          until when it holds; nil: it does not
  --   fence()       the fence of who holds
  --   fits(token)   whether it can hold beside those who do
  --   extend(token, expiry)   moves the end of its lease
  --   raise(fence)  makes the next fence higher than this one
  --   soonest()     when the next lease ends; 0: unknown. None lasts for longer than the time to live in its token:
  --                 what does is from before the server's clock was set back, and is cut to that
  --   head(turn)    the token that goes first, its queue, and whether it is by now the turn of the second queue; where
  --                 it is missing, that is the first of the first queue that has any
}

-- The whole number that a key holds, or begins with before a space; 0 where it holds nothing.
function kind.whole(text)
  local number = tonumber(text or 0) or tonumber(string.match(text, '^(%d+) ') or '')
  if number and number % 1 == 0 and number >= 0 and number < 9007199254740992 then return number end
  error('WRONGTYPE of a number', 0)
end

-- What to answer where a run failed; nil: -1 for this run alone, since a key is of another type, or holds no number
-- where one belongs.
local function failure(problem)
  local text = type(problem) == 'table' and problem.err or problem
  if string.find(text, 'WRONGTYPE', 1, true) or string.find(text, 'not an integer', 1, true) then return nil end
  return {err = text}
end

local lease -- what rules and scripts are made of; nil until it is made
local function new_lease()
  lease = {}

  -- The time to live in a token, µs; nil: there is none.
  function lease.ttl_of(token)
    local ttl = string.match(token, '^%x+%.(%x+)', 18)
    return ttl and tonumber(ttl, 16)
  end

  -- How many go before one of a rank.
  function lease.ahead(rank)
    return call('LLEN', queue) + (second and rank > 0 and call('LLEN', second) or 0)
  end

  -- The rules where the holders are a ZSET, token -> expiry.
  function lease.expires(token)
    local expiry = tonumber(call('ZSCORE', holders, token) or 0)
    return expiry > now and expiry or nil
  end

  function lease.soonest()
    local first = call('ZRANGE', holders, 0, 0, 'WITHSCORES')
    local last = first[1] and call('ZRANGE', holders, lift, 0, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES') or first
    local function lasts_too_long(token, expiry)
      local ttl = token and lease.ttl_of(token)
      return ttl and tonumber(expiry) > now + ttl
    end
    if not (lasts_too_long(unpack(first)) or lasts_too_long(unpack(last))) then return tonumber(first[2] or 0) end
    local all = call('ZRANGE', holders, 0, -1, 'WITHSCORES')
    for i = 1, #all, 2 do
      if lasts_too_long(all[i], all[i + 1]) then call('ZADD', holders, now + lease.ttl_of(all[i]), all[i]) end
    end
    return tonumber(call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2])
  end

  -- Answers each run with so many of the values that `step` returns.
  function lease.each(width, step)
    local reply, keys = {now}, kind.keys
    for run = 1, #KEYS / keys do
      holders, mark, queue, beats, fifth, sixth = unpack(KEYS, keys * (run - 1) + 1, keys * run)
      second, heard = kind.two and KEYS[keys * (run - 1) + kind.two], 0
      if kind.begin then kind.begin(run) end
      local values = {pcall(step, run)}
      if not values[1] then
        local problem = failure(values[2])
        if problem then return problem end
        values[2] = -1
      end
      for i = 2, width + 1 do reply[#reply + 1] = values[i] or 0 end
    end
    return reply
  end
end
