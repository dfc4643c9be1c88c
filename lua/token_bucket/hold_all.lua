-- token_bucket/hold_all: holds tokens of several buckets together, raises such holds, and captures or releases them.
-- KEYS     strings, the buckets: those of run 1 in the order of the limits, then those of run 2, ...; a bucket may belong
--          to many runs
-- ARGV     no quotas, one more than the number of limits, the quotas of each limit (so the first set of lib/several is
--          empty); then per run: 1 if the run is done in all buckets or in none, 0 if it is done in each by itself; then
--          per limit the step, as of token_bucket/hold
-- returns  now (µs); then per run and limit a list as of token_bucket/hold. Of a run that is done in none, the states are
--          those without it. -1 if the key does not hold a bucket
-- writes   changed buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills); DEL when idle
-- cost     one MGET, one GET per bucket that MGET does not find, one SET per changed bucket
local on, with = on_tables(), on_holds()
table.remove(sets, 1)
local n = #sets

-- The first position of each key in KEYS, and the list of these positions.
local at, met, names = {}, {}, {}
for i, key in ipairs(KEYS) do
  if not at[key] then at[key], met[#met + 1], names[#met + 1] = i, i, key end
end

-- Per position: the state, whether it is new, whether it is to be written.
local states, is_new, changed, takes = {}, {}, {}, {}
local raw = redis.call('MGET', unpack(names))
for m, i in ipairs(met) do
  local stored = raw[m] or call('GET', KEYS[i]) -- MGET finds nothing in a key of another type; GET fails on it
  under(i)
  if type(stored) ~= 'table' then
    states[i], is_new[i], changed[i] = on.load(stored)
  elseif not string.find(stored.err, 'WRONGTYPE', 1, true) then
    return stored
  end
end

local reply = {now}
for run = 1, #KEYS / n do
  local base, a, done, steps = n * (run - 1), first + (n + 1) * (run - 1), true, {}
  for p = 1, n do
    local i = at[KEYS[base + p]]
    under(p)
    local s = states[i]
    if string.byte(ARGV[a + p]) == 0 then takes[i] = true end
    if s and run > 1 then
      s = on.rested(s)
      states[i] = s
    end
    if s then
      local h = {held = 0, captures = 0, next = 0, last = 0}
      for name, value in pairs(s.holds or {}) do h[name] = value end
      local free = s[1] > now and -1 or on.free(s, now, 0)
      steps[p] = {h, hold_step(h, free, ARGV[a + p])}
    end
    if ARGV[a] == '1' and not (s and steps[p][2] == 1) then done = false end
  end
  for p = 1, n do
    local i, answer = at[KEYS[base + p]], -1
    if steps[p] then
      local s, h, outcome, amount, tokens, changes = states[i], unpack(steps[p])
      under(p)
      if done then
        s.holds = h.count > 0 and h or nil
        if tokens > 0 then with.settle(s, now, tokens, quotas) end
      end
      changed[i] = changed[i] or is_new[i] or (done and changes)
      answer = {outcome, amount, on.told(s)}
    end
    reply[#reply + 1] = answer
  end
end

for _, i in ipairs(met) do
  if changed[i] then
    under(i)
    local saved = on.save(KEYS[i], states[i], false, not takes[i])
    if type(saved) == 'table' and saved.err then return saved end
  end
end
return reply
