-- answer: what came of a flight, kept for a while beside the lock. The mark is `fresh codec bytes`: until when it is fresh
-- (µs), the name of the codec that wrote the bytes, and these. It may be kept for longer than that, to be served while
-- somebody makes a fresh one.
-- ARGV      for all runs: the codec; to enter: for how long it is fresh (µs), for how long it is kept (µs), bytes
kind.fenced, kind.scope = false, 1
local published = 8192 -- larger answers are not published, but read by those who wait

function kind.queries()
  return 0
end

function kind.entries()
  return 3
end

-- Finds `fresh bytes`, or `other` where another codec wrote it. What is fresh is all there is to do.
function kind.look(bypass, base)
  local answer, codec = call('GET', mark), ARGV[base]
  if not answer then return nil end
  local fresh, name = string.match(answer, '^(%d+) (%S+) ')
  if name ~= codec then return 'other' end
  local span = tonumber(fresh) - now
  local text = string.format('%d ', span) .. string.sub(answer, #fresh + #name + 3)
  if bypass then return text end
  return text, span > 0
end

function kind.enter(holding, base, at)
  if not holding then return nil, false end
  local codec, fresh, keep, bytes = ARGV[base], tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2]
  call('SET', mark, string.format('%d ', now + fresh) .. codec .. ' ' .. bytes, 'PX', math.ceil(keep / 1000))
  return nil, #bytes > published or codec .. string.format(' %d ', fresh) .. bytes
end
