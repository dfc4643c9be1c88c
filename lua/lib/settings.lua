-- settings: what may change while waiters for permits wait. The mark has two members for it, which are read at each grant:
--   `o version aging newest reserved …`   the settings of the WaitGroup that was built last: when that was (µs, at most now);
--           how long the waiters of lower ranks may be served before others (µs; 0: 10 s); for how long there must have been
--           waiters without a flow, so that the newest is served first (µs; 0: never); how many permits each rank, from 0
--           on, leaves to those before it
--   `l source version limit at`   the limit: 2: of the fleet, with its version; 1: one that adapts, whose version is 0; the
--           limit (`-`: the setting was undone), and when it was told last (µs). Out of date after 30 s
-- The first waiter of an empty queue begins anew. The limit counts instead of that of the token. Behind that, a token has
-- `/flow.share.reserve.bound` if any of these is not usual, in hexadecimal digits: the digest of the name of its flow and the
-- share of that; how many permits are missing in its limit, since they are reserved; and the limit that was chosen for it
-- alone, if that counts where it is lower. Joined after lib/permits.
local usual_aging, fresh, again = 10000000, 30000000, 5000000 -- µs
local of_limit, of_rules = '-1125899906842625', '-1125899906842624' -- their scores
local known -- the settings for the current run; nil: not read yet
kind.arguments = 1

local none = {} -- the order of a token without one
local function order(token)
  local flow, share, reserve, bound = string.match(token, '^[^/]*/[^/]*/[^/]*/(%x*)%.(%x*)%.(%x*)%.(%x*)$', 18)
  if not flow then return none end
  local has_flow = flow ~= '' and share ~= '' and #flow <= 32
  return {
    flow = has_flow and flow or nil,
    share = has_flow and math.max(tonumber(share, 16) or 1, 1) or nil,
    reserve = math.min(tonumber(reserve, 16) or 0, 4294967295),
    bound = bound ~= '' and math.min(tonumber(bound, 16), 4294967295) or nil,
  }
end

local function rules_in(text)
  local numbers = {}
  for word in string.gmatch(text, '%d+') do numbers[#numbers + 1] = tonumber(word) end
  return numbers
end

-- Returns the settings that are stored.
local function stored()
  local of = {rules = none}
  for _, member in ipairs(call('ZRANGE', mark, of_limit, of_rules, 'BYSCORE')) do
    local source, version, limit, at = string.match(member, '^l (%d+) (%d+) (%S+) (%d+)$')
    if source then
      of.limit_text, at = member, tonumber(at)
      if at <= now and at + fresh > now then
        of.source, of.version, of.limit, of.at = tonumber(source), tonumber(version), tonumber(limit), at
      end
    else
      of.rules_text, of.rules = member, rules_in(member)
    end
  end
  return of
end

local function settings()
  known = known or stored()
  return known
end

-- How long waiters of lower ranks may be served before others, and whether ranks are used.
local function aging()
  local own = settings().rules[2] or 0
  return own > 0 and own or usual_aging, own > 0
end

-- Replaces a member of the settings.
local function replace(old, new, score)
  if old then call('ZREM', mark, old) end
  call('ZADD', mark, score, new)
  call('PEXPIRE', mark, math.ceil(lease.tombstone / 1000))
end

-- Takes over the settings that a caller tells, if they are newer. Returns whether they differ.
local function take_over(text)
  local of, differs = known, false
  local limit, rules = string.match(text, '^(.-)|(.*)$')
  local source, version, value = string.match(limit or '', '^(%d+) (%d+) (%S+)$')
  if source then
    source, version = tonumber(source), tonumber(version)
    local is_newer = not of.source or source == of.source and version >= of.version
      or source > of.source and tonumber(value) ~= nil or source < of.source and not of.limit
    local is_same = source == of.source and version == of.version and tonumber(value) == of.limit
    if is_newer and not (is_same and of.at + again > now) then
      local member = string.format('l %d %d %s %d', source, version, value, now)
      replace(of.limit_text, member, of_limit)
      differs = not is_same
      of.limit_text, of.source, of.version, of.limit, of.at = member, source, version, tonumber(value), now
    end
  end
  local numbers = rules_in(rules or '')
  if numbers[1] then
    numbers[1] = math.min(numbers[1], now)
    local last = of.rules[1]
    if not last or last > now or numbers[1] > last then
      for i, number in ipairs(numbers) do numbers[i] = string.format('%d', number) end
      local member = 'o ' .. table.concat(numbers, ' ')
      replace(of.rules_text, member, of_rules)
      of.rules_text, of.rules, differs = member, rules_in(member), true
    end
  end
  return differs
end

local told_last, told_for, told_then -- what was told last in this call, of which key, and what was known then

-- Hears what a caller tells, if there are waiters. `waiting`: perhaps, `waits`: surely. Returns whether it differs from what
-- was known.
function kind.tell(text, waiting, waits)
  if waits and text == told_last and mark == told_for then
    known = told_then
    return false
  end
  known = {rules = none}
  if not waiting or not waits and call('EXISTS', queue) == 0 then return false end
  known = stored()
  told_last, told_for, told_then = text, mark, known
  return take_over(text)
end

-- The same for the first waiter of an empty queue, before it lines up.
function kind.tell_first(text)
  if call('EXISTS', queue) == 1 then return end
  call('ZREMRANGEBYSCORE', mark, '-inf', '+inf') -- fails on another type, which DEL would overwrite
  known = {rules = none}
  told_last, told_for, told_then = text, mark, known
  take_over(text)
end

-- Returns the limit for a token of a rank.
function kind.limit_for(token, rank, limit)
  local of, own = settings(), order(token)
  local reserve = own.reserve or 0
  local most = limit + reserve
  if of.limit then most = math.min(of.limit, own.bound or of.limit) end
  if most == 0 then return 0 end
  if of.rules[1] then reserve = of.rules[4 + rank] or 0 end
  return math.max(most - reserve, 1)
end

local permits_begin = kind.begin
function kind.begin()
  known = nil
  permits_begin()
end
