-- answer: what came of a flight, kept for a while beside the lock: `fresh codec bytes`, with until when it is fresh
-- (µs) and the name of the codec that wrote the bytes. It may be kept for longer than that, to be served while somebody
-- makes a fresh one.
-- KEYS      the mark is the answer (string)
-- ARGV      for all runs: the codec; to enter: for how long it is fresh (µs), for how long it is kept (µs), bytes
kept, scope = false, 1
local told = 8192 -- larger answers are not published, but read by those who wait

-- The bytes, behind `fresh ` or for another codec's as `other`; what is fresh is all there is to do, but for those who
-- insist.
look = function(insists)
  local answer, codec = call('GET', mark), ARGV[base]
  if not answer then return nil end
  local fresh, name = match(answer, '^(%d+) (%S+) ')
  if name ~= codec then return 'other', nil end
  local span = tonumber(fresh) - now
  local bytes = sub(answer, #fresh + #name + 3)
  local text = string.format('%d ', span) .. bytes
  if insists then return text, nil end
  return text, span > 0
end

enter = function(holding)
  local fresh, keep, bytes = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2]
  at = at + 3
  if not holding then return nil, false end
  local codec = ARGV[base]
  call('SET', mark, string.format('%d ', now + fresh) .. codec .. ' ' .. bytes, 'PX', ms(keep))
  return nil, #bytes > told or codec .. string.format(' %d ', fresh) .. bytes
end
