-- several: acquires a lease of each of several keys: all of them, or none. It takes no place in a queue.
-- Keys       see state, one run for each lease, all of different keys
-- Arguments  see queue; then the ttl of the leases (µs); then per run: the token
-- Returns    now (µs); then one of these:
--            1; then per run: expiry (µs), fence: all hold
--            0, when the next lease of the first key that is not free ends (µs, 0: unknown), how many wait for it
--            -2: a token was withdrawn before; -1: a key is of another type
-- Writes     the leases and the mark; what is granted to waiters; all with a ttl

-- Returns nothing if a key is free of holders and waiters, or the token holds it; otherwise the reply.
local function obstacle(c, text)
  local rules = c.holders
  c.value = call('GET', c.lock) -- fails on a key of another type, as the fence does
  rules.fence(c)
  if rules.expires(c, text) then return nil end
  if c.waiting then
    queue.open(c)
    local _, withdrawn = queue.look_up(c, text)
    if withdrawn then return {c.now, -2} end
    grants.serve(c)
  end
  if not rules.free(c) then return {c.now, 0, rules.soonest(c), queue.ahead(c, rules.counts)} end
end

function operations.acquire_all(keys, args)
  local kind, now, of, waits = kinds[args[2]], clock(), {}, {}
  for first = 1, #keys, kind.keys do
    local c = state.of(kind, keys, first, args, now, nil, '') -- all messages are published
    of[#of + 1], waits[#waits + 1] = c, c.beats
  end
  local waiting = call('EXISTS', unpack(waits)) > 0
  for run, c in ipairs(of) do
    c.waiting = waiting
    local problem = obstacle(c, args[4 + run])
    if problem then return problem end
  end
  local held, expiry = {now, 1}, now + args[4]
  for run, c in ipairs(of) do
    local rules, text = c.holders, args[4 + run]
    local ends = rules.expires(c, text)
    held[2 * run + 1], held[2 * run + 2] = ends or expiry, ends and rules.fence(c) or rules.hold(c, text, expiry)
  end
  return held
end
