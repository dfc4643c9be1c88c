-- answer: what came of a flight, kept for a while beside the lock. The mark is `fresh stale codec bytes`: until when it is
-- fresh, until when it is served stale while somebody makes a fresh one (µs), the name of the codec that wrote the bytes, and
-- these. Those who asked while it was fresh may have it after that, as long as it is kept. What is fresh for no time is for
-- those alone who wait when it is entered.
-- ARGV      for all runs: the codec; to look: when the asker asked first (µs, 0: now), and whether
--           it takes a stale answer (0, 1); to enter: for how long it is fresh, for
--           how long it is served stale (µs, at least as long), bytes
kind.fenced, kind.scope = false, 1
local published = 8192 -- larger answers are not published, but read by those who wait
local readable = 1000000 -- for how long they can read it at least (µs)

function kind.queries()
  return 2
end

function kind.entries()
  return 3
end

-- Finds `fresh stale bytes`, the times from now on, or `other` where another codec wrote it. What was fresh since the asker
-- asked is all there is to do.
function kind.look(bypass, base, at)
  local answer, codec, since = call('GET', mark), ARGV[base], tonumber(ARGV[at])
  if not answer then return nil end
  local fresh, stale, name = string.match(answer, '^(%d+) (%d+) (%S+) ')
  if not fresh then return 'other' end
  local good = tonumber(fresh) > (since > 0 and math.min(since, now) or now)
  if not good and (tonumber(stale) <= now or ARGV[at + 1] == '0') then return nil end
  if name ~= codec then return 'other' end
  local times = string.format('%d %d ', tonumber(fresh) - now, tonumber(stale) - now)
  local text = times .. string.sub(answer, #fresh + #stale + #name + 4)
  if bypass then return text end
  return text, good
end

function kind.enter(holding, base, at)
  if not holding then return nil, false end
  local codec, fresh, stale, bytes = ARGV[base], tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2]
  if stale == 0 and call('EXISTS', queue) == 0 then return nil, false end
  local times, ttl = string.format('%d %d ', now + fresh, now + stale), math.ceil(math.max(stale, readable) / 1000)
  call('SET', mark, times .. codec .. ' ' .. bytes, 'PX', ttl)
  return nil, #bytes > published or codec .. string.format(' %d %d ', fresh, stale) .. bytes
end
