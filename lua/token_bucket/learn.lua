-- token_bucket/learn: remembers the quotas that an upstream told, and grants a correction of a level.
-- KEYS[1]  string, what is remembered: when the request was charged that the quotas are from (µs); until when requests
--          must have been charged (µs) whose answers correct no level; the quotas (text)
-- ARGV     when the request was charged whose response told the news (µs; 0: only read); the quotas (empty: none were
--          told); 1: a level is above what the upstream told, 0: it is not
-- returns  now (µs); 1: correct the level, 0: do not, -1: the key is of another type; the quotas (empty: none)
-- writes   SET with PXAT: 7 days
-- cost     one GET, one SET if anything is remembered
local remembered, settling = 604800000000, 100000 -- µs
local raw = redis.pcall('GET', KEYS[1])
if type(raw) == 'table' then return refused(raw, '') end

local order, corrected, quotas = string.match(raw or '', '^(%d+) (%d+) (.*)$')
-- The clock may have been set back.
order, corrected = math.min(tonumber(order or 0), now), math.min(tonumber(corrected or 0), now + settling)
local news, corrects = math.min(tonumber(ARGV[1]), now), 0
if ARGV[2] ~= '' and news > order then order, quotas = news, ARGV[2] end
if ARGV[3] == '1' and news > corrected then corrected, corrects = now + settling, 1 end
if order > 0 or corrected > 0 then
  local value = string.format('%d %d %s', order, corrected, quotas or '')
  redis.call('SET', KEYS[1], value, 'PXAT', string.format('%d', (now + remembered) / 1000))
end
return {now, corrects, quotas or ''}
