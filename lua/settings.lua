-- settings: settings that may change while waiters for permits wait. The mark has two members for them, read at each grant:
--   `o version aging newest reserved …`   the settings of the WaitGroup that was built last: when it was built (µs, at most
--           now); how long the waiters of lower ranks may be served before others (µs; 0: 10 s); how long there must have
--           been waiters without a flow before the newest is served first (µs; 0: never); how many permits each rank, from
--           0 on, leaves to lower ranks
--   `l source version limit at`   the limit: 2: of the fleet, with its version; 1: adaptive, with the version 0; the limit
--           (`-`: the setting was undone), and when it was last sent (µs). Ignored after 30 s
-- The first waiter of an empty queue starts with its own settings. The limit replaces the limit in the token. After
-- its limit, a token has `/flow.share.reserve.bound` if any of these is not the default, in hexadecimal digits: the digest
-- of the name of its flow and the share of the flow; how many permits are missing in its limit because they are
-- reserved; and the limit that was chosen for it alone, which applies if it is lower.
-- The state has `known`: the settings for the current run; nil: not read yet.
settings = {
  aging = 10000000, fresh = 30000000, again = 5000000, -- µs
  limit = '-1125899906842625', rules = '-1125899906842624', -- their scores
}

local none = {} -- the order of a token without one
function settings.order(text)
  local flow, share, reserve, bound = match(text, '^[^/]*/[^/]*/[^/]*/(%x*)%.(%x*)%.(%x*)%.(%x*)$', 18)
  if not flow then return none end
  local has_flow = flow ~= '' and share ~= '' and #flow <= 32
  return {
    flow = has_flow and flow or nil,
    share = has_flow and max(number(share, 16) or 1, 1) or nil,
    reserve = min(number(reserve, 16) or 0, 4294967295),
    bound = bound ~= '' and min(number(bound, 16), 4294967295) or nil,
  }
end

local function rules_in(text)
  local numbers = {}
  for word in string.gmatch(text, '%d+') do numbers[#numbers + 1] = number(word) end
  return numbers
end

-- Returns the stored settings.
local function stored(c)
  local of = {rules = none}
  for _, member in ipairs(call('ZRANGE', c.mark, settings.limit, settings.rules, 'BYSCORE')) do
    local source, version, limit, at = match(member, '^l (%d+) (%d+) (%S+) (%d+)$')
    if source then
      of.limit_text, at = member, number(at)
      if at <= c.now and at + settings.fresh > c.now then
        of.source, of.version, of.limit, of.at = number(source), number(version), number(limit), at
      end
    else
      of.rules_text, of.rules = member, rules_in(member)
    end
  end
  return of
end

function settings.known(c)
  c.known = c.known or stored(c)
  return c.known
end

-- Returns how long waiters of lower ranks may be served before others, and whether ranks are used.
function settings.aging_of(c)
  local own = settings.known(c).rules[2] or 0
  return own > 0 and own or settings.aging, own > 0
end

-- Returns how long there must have been waiters without a flow before the newest is served first; 0: never.
function settings.newest(c)
  return settings.known(c).rules[3] or 0
end

-- Replaces a member of the settings.
local function replace(c, old, new, score)
  if old then call('ZREM', c.mark, old) end
  call('ZADD', c.mark, score, new)
  call('PEXPIRE', c.mark, ceil(queue.tombstone / 1000))
end

-- Stores the limit of a caller, if it is newer. Returns whether it differs.
local function take_limit(c, of, text)
  local source, version, value = match(text or '', '^(%d+) (%d+) (%S+)$')
  if not source then return false end
  source, version = number(source), number(version)
  local is_newer = not of.source or source == of.source and version >= of.version
    or source > of.source and number(value) ~= nil or source < of.source and not of.limit
  local is_same = source == of.source and version == of.version and number(value) == of.limit
  if not is_newer or is_same and of.at + settings.again > c.now then return false end
  local member = format('l %d %d %s %d', source, version, value, c.now)
  replace(c, of.limit_text, member, settings.limit)
  of.limit_text, of.source, of.version, of.limit, of.at = member, source, version, number(value), c.now
  return not is_same
end

-- The same for the settings of the caller's WaitGroup.
local function take_rules(c, of, text)
  local numbers = rules_in(text or '')
  if not numbers[1] then return false end
  numbers[1] = min(numbers[1], c.now)
  local last = of.rules[1]
  if last and last <= c.now and numbers[1] <= last then return false end
  for i, value in ipairs(numbers) do numbers[i] = format('%d', value) end
  local member = 'o ' .. table.concat(numbers, ' ')
  replace(c, of.rules_text, member, settings.rules)
  of.rules_text, of.rules = member, rules_in(member)
  return true
end

local function take_over(c, text)
  local limit, rules = match(text, '^(.-)|(.*)$')
  local has_limit, has_rules = take_limit(c, c.known, limit), take_rules(c, c.known, rules)
  return has_limit or has_rules
end

-- Stores the known settings after a caller has sent a text, for the next run of the same key.
local function remember(c, text)
  c.told, c.then_known = text, c.known
end

-- Processes the settings of a caller, if there are waiters. `waiting`: there may be waiters, `waits`: there are.
-- Returns whether the settings differ from the known ones.
function permits.tell(c, text, waiting, waits)
  if waits and text == c.told then
    c.known = c.then_known
    return false
  end
  c.known = {rules = none}
  if not waiting or not waits and call('EXISTS', c.queue) == 0 then return false end
  c.known = stored(c)
  remember(c, text)
  return take_over(c, text)
end

-- The same for the first waiter of an empty queue, before it is added.
function permits.tell_first(c, text)
  if call('EXISTS', c.queue) == 1 then return end
  call('ZREMRANGEBYSCORE', c.mark, '-inf', '+inf') -- fails on another type, which DEL would overwrite
  c.known = {rules = none}
  remember(c, text)
  take_over(c, text)
end

-- Returns the limit for a token of a rank.
function permits.limit(c, text, rank, limit)
  local of, own = settings.known(c), settings.order(text)
  local reserve = own.reserve or 0
  local most = limit + reserve
  if of.limit then most = min(of.limit, own.bound or of.limit) end
  if most == 0 then return 0 end
  if of.rules[1] then reserve = of.rules[4 + rank] or 0 end
  return max(most - reserve, 1)
end
