-- lease/acquire_release: acquires and releases leases and places in the queue, and grants what becomes free. Enters the
-- outcomes of leases.
-- KEYS      see lib/lease, per run
-- ARGV      see lib/queue, then lib/acquire; then the arguments of the kind for all runs; then per run:
--           the verb: `acquire`; `bypass`: acquire in spite of outcomes of earlier leases; `release`; `withdraw`:
--           release, and refuse an acquire that runs later; `complete`: enter the outcome, and release;
--           the token; for acquire and bypass, the arguments of `look`; for complete, those of `enter`
-- returns   now (µs); then per run four numbers, what was granted to this process (0, or a list of messages, see
--           lib/queue), and for kinds with outcomes what `look` found, or why nothing was entered or released (0: nothing)
--           acquire: 1, expiry (µs), fence, 0: it holds
--                    2 (queued) or 0 (refused), when the next lease ends (µs, 0: unknown), 0, how many are ahead of it
--                    3: the work is done; -2: it was withdrawn before; -1: a key is of another type
--           release: 1: it held; 2: it waited; 0: neither; -1: a key is of another type
--           complete: 1: it held; 2: another holds; 0: neither; -1: a key is of another type; then how full the filter is
--                     now, for kinds that have one, else 0
-- writes    leases, places, tombstones, the mark, the outcome; all with a ttl
--           If all runs went the usual way, the reply is now alone: each acquire holds, for its ttl, with now as its fence
--           (permits: 0); each release and complete was of the holder, and told nothing more. The time is 0 where it was not
--           read: for a lone release of a mutex.
-- cost      a free mutex: five commands to acquire, three of them once for all runs; four to release, for all runs
local ARGV, pcall, keys, look, begin = ARGV, pcall, kind.keys, kind.look, kind.begin
local names, some = {}, arg -- some: the position of the first verb that is no release, if any
while ARGV[some] == 'release' or ARGV[some] == 'withdraw' do some = some + 2 end
if kind.read then kind.read(ARGV[some]) end
for i = key + 3, #KEYS, keys do
  if KEYS[i] ~= names[#names] then names[#names + 1] = KEYS[i] end
end
local alone, any -- `kept`, if all runs are of one key; whether any key has waiters or tombstones
if #names == 1 then
  alone = call('PTTL', names[1])
  any = alone ~= -2
else
  any = call('EXISTS', unpack(names)) > 0
end

for run = 1 + (key - 1) / keys, #KEYS / keys do
  local first, verb, token = keys * (run - 1), ARGV[arg], ARGV[arg + 1]
  if KEYS[first + 1] ~= holders then
    owed, length, before, ends, settled, kept, tail = false, nil, nil, nil, false, alone, nil
    waiting = any and (alone or call('EXISTS', KEYS[first + 4]) == 1)
    if waiting then waiters = waiters or new_waiters() end
  end
  holders, mark, queue, beats = KEYS[first + 1], KEYS[first + 2], KEYS[first + 3], KEYS[first + 4]
  if keys > 5 then fifth, sixth = KEYS[first + 5], KEYS[first + 6] end
  asker, heard, arg = token, 0, arg + 2
  if begin then begin(run) end
  local step, after = acquire, ARGV[arg]
  if verb == 'release' or verb == 'withdraw' then
    step, after = release, holders == KEYS[first + keys + 1] and (after == 'release' or after == 'withdraw')
  elseif verb == 'complete' then
    step = complete
  end
  local ok, status, at_end, fence, ahead = pcall(step, token, verb == 'bypass' or verb == 'withdraw', arg, after)
  if not ok then
    local problem = failure(status)
    if problem then
      if kind.write then kind.write() end
      return problem
    end
    status, at_end, fence, ahead = -1, 0, 0, 0
  end
  reply[filled + 1], reply[filled + 2], reply[filled + 3] = status, at_end, fence
  reply[filled + 4], reply[filled + 5] = ahead, heard
  filled = filled + 5
  if kind.arguments and step ~= release then arg = arg + kind.arguments end
  if look then
    filled = filled + 1
    reply[filled], found = found or 0, nil
  end
end
if kind.write then kind.write() end
return reply
