-- token_bucket/reserve_all: charges each request to several buckets, in full to all of them or not at all.
-- KEYS     strings, the buckets: those of run 1 by limit, then those of run 2, ...; a bucket may belong to many runs
-- ARGV     sets of quotas (see lib/several); then per run, or once for all runs: cost (tokens), count (requests, all
--          alike, in a row)
-- returns  now (µs); then per run: admitted (the first so many of count; -1 where a key holds something else than a
--          bucket), and a list of the states before it, by limit
-- writes   charged buckets, SET with PXAT (see lib/bucket; without where a quota never refills)
-- cost     one MGET, one SET per charged bucket, one GET per bucket that MGET does not find
local on = on_tables()
local raw, reply = redis.call('MGET', unpack(KEYS)), {now}
-- The buckets of this call, by key and in the order in which they are met: {key, place among KEYS, state, whether a quota
-- is new to it, whether it is to be saved}.
local buckets, met = {}, {}

-- The bucket KEYS[i]; false where that is none. Also the error, where Redis has one.
local function bucket(i)
  local key = KEYS[i]
  local known = buckets[key]
  if known then
    -- It stands for the levels again; see lib/bucket.
    if known.state then known.state = on.rested(known.state) end
    return known
  end
  local stored = raw[i] or call('GET', key) -- MGET finds nothing in a key of another type; GET fails on it
  known = {key = key, place = i}
  if type(stored) ~= 'table' then
    known.state, known.is_new = on.load(stored)
  elseif not string.find(stored.err, 'WRONGTYPE', 1, true) then
    return known, stored
  end
  buckets[key], met[#met + 1] = known, known
  return known
end

local n, stride = #sets, #ARGV == first + 1 and 0 or 2
for run = 1, #KEYS / n do
  local a = first + stride * (run - 1)
  local cost, admitted = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local these, states = {}, {}
  for p = 1, n do
    local i = n * (run - 1) + p
    under(i)
    local this, failed = bucket(i)
    if failed then return failed end
    local s = this.state
    if not s then
      admitted = -1
    elseif admitted > 0 then
      admitted = s[1] > now and 0 or max(0, min(admitted, floor(on.free(s, now, 0) / cost)))
    end
    these[p], states[p] = this, s and on.told(s) or 0
  end
  for p = 1, admitted >= 0 and n or 0 do
    local this = these[p]
    this.changed = this.changed or this.is_new or admitted > 0
    if admitted > 0 then
      under(p)
      this.state = on.rested(this.state)
      on.charge(this.state, now, admitted * cost)
    end
  end
  reply[2 * run], reply[2 * run + 1] = admitted, states
end
for _, this in ipairs(met) do
  if this.changed then
    under(this.place)
    local saved = on.save(this.key, (on.rested(this.state)))
    if type(saved) == 'table' and saved.err then return saved end
  end
end
return reply
