-- answer: the answer of a flight, kept for a while beside the lock. The mark is `entered fresh stale codec bytes`: when
-- the answer was entered, how long from then on it is fresh, how long it is served stale while a caller makes a fresh one
-- (all µs), the name of the codec that encoded the bytes, and the bytes. A caller that asked while the answer was fresh
-- may get it as long as it is kept. An answer that is fresh for no time is only for callers that wait when it is entered.
-- An answer that was entered later than now is not served: the clock was set back, so its age is unknown.
-- Bytes that begin with `+` are an answer; others say that the work failed, or is not shared.
-- ARGV      for all runs: the codec; to look: when the caller first asked (µs, 0: now), whether it takes a stale answer
--           (0, 1), and how long before its end (µs) an answer counts as stale, and is taken, if it begins with `+`; to
--           enter: `fresh stale` (see the mark; stale is at least fresh), how long the answer is kept (ms), its bytes
kind.fenced = false
local small = 1024 -- what is recorded of an item also if the server is out of memory
local published = 8192 -- larger answers are not part of the message: the waiters read them

kind.arguments = 3

-- Finds `fresh stale bytes`, with the times counted from now, or `other` if another codec wrote the answer. If the
-- answer was fresh at any time since the caller asked, nothing is left to do.
function kind.look(bypass, base, at)
  local answer, codec, since = call('GET', mark), ARGV[base], tonumber(ARGV[at])
  if not answer then return nil end
  local entered, fresh, stale, name, first = string.match(answer, '^(%d+) (%d+) (%d+) (%S+) ()')
  if not entered then return 'other' end
  local age = now - entered
  if age < 0 then return nil end
  local good = entered + fresh > (since > 0 and math.min(since, now) or now)
  if not good and (stale - age <= 0 or ARGV[at + 1] == '0') then return nil end
  if name ~= codec then return 'other' end
  local left = fresh - age
  local text = string.format('%d %d ', left, stale - age) .. string.sub(answer, first)
  if bypass then return text end
  local early = left > 0 and left <= tonumber(ARGV[at + 2]) and string.sub(answer, first, first) == '+'
  return text, good and not early
end

function kind.enter(holding, base, at)
  if not holding then return nil, false end
  local codec, spans, bytes = ARGV[base], ' ' .. ARGV[at] .. ' ', ARGV[at + 2]
  if spans == ' 0 0 ' and call('EXISTS', queue) == 0 then return nil, false end
  if #bytes <= small then call('ZREM', beats, '') end -- removes nothing: see lib/exact
  call('SET', mark, string.format('%d', now) .. spans .. codec .. ' ' .. bytes, 'PX', ARGV[at + 1])
  return nil, #bytes > published or codec .. spans .. bytes
end
