-- lease/acquire_release: takes leases, or places in the queue for them, and gives them back; what becomes free is granted.
-- KEYS      see lib/lease, per run
-- ARGV      see lib/queue, then lib/acquire; then what the kind takes for all runs; then per run `acquire`, `bypass` for an
--           acquire whatever came of earlier leases, `release`, or `withdraw` for a release after which an acquire that
--           comes late is refused; the token; and for those who acquire what the kind needs to look
-- returns   now (µs); then per run four numbers, what was granted to this process (0, or a list of messages, see lib/queue),
--           and for kinds that look what was found (0: nothing)
--           acquire: 1 and expiry (µs), fence, 0: held, as before if the token held before; 2 or 0 and when the next
--           lease ends (µs, 0: unknown), 0, how many wait before it: queued, or refused; 3: nothing is left to do;
--           -2: withdrawn before it came
--           release: 1: it held; 2: it waited; 0: neither
-- writes    leases, places, tombstones, the mark; all with a time to live
-- cost      for a free mutex five commands to acquire, of which three serve all runs; to release four for all runs
local ARGV, pcall, keys, two, look, begin = ARGV, pcall, kind.keys, kind.two, kind.look, kind.begin
local names, reply, n, at = {}, {now}, 1, 8 + kind.scope
local some = at -- the first run that acquires, if any
while ARGV[some] == 'release' or ARGV[some] == 'withdraw' do some = some + 2 end
if kind.read then kind.read(ARGV[some]) end
for i = 4, #KEYS, keys do
  if KEYS[i] ~= names[#names] then names[#names + 1] = KEYS[i] end
end
waiting = call('EXISTS', unpack(names)) > 0
if waiting then waiters = new_waiters() end

for run = 1, #KEYS / keys do
  local first, verb, token = keys * (run - 1), ARGV[at], ARGV[at + 1]
  if KEYS[first + 1] ~= holders then owed, length, before, ends = false, nil, nil, nil end
  holders, mark, queue, beats = KEYS[first + 1], KEYS[first + 2], KEYS[first + 3], KEYS[first + 4]
  if two then second = KEYS[first + two] end
  if keys > 5 then fifth, sixth = KEYS[first + 5], KEYS[first + 6] end
  asker, heard, at = token, 0, at + 2
  if begin then begin(run) end
  local step, after = acquire, ARGV[at]
  if verb == 'release' or verb == 'withdraw' then
    step, after = release, holders == KEYS[first + keys + 1] and (after == 'release' or after == 'withdraw')
  end
  local ok, status, at_end, fence, ahead = pcall(step, token, verb == 'bypass' or verb == 'withdraw', at, after)
  if not ok then
    local problem = failure(status)
    if problem then return problem end
    status, at_end, fence, ahead = -1, 0, 0, 0
  end
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = status, at_end, fence, ahead, heard
  n = n + 5
  if look then
    if step == acquire then at = at + kind.queries(8) end
    n = n + 1
    reply[n], found = found or 0, nil
  end
end
if kind.write then kind.write() end
return reply
