-- quick_outcome: as lib/quick_mutex, for kinds with outcomes: serves the first runs that are of the usual form. Joined
-- between lib/lease and a file of the kind that says what the usual form is:
-- quick_keys      how many keys a run has
-- quick_from      the first of the keys of a run, up to the fourth, which exist only if there may be waiters
-- quick_tried     whether lib/quick_lead or lib/quick_new could not serve a lone run
-- quick(verb, key, at, known)   looks for an outcome, if the lock is free, or enters one, for the run whose keys and
--                 arguments begin there. Returns how many arguments the run takes, and how full the filter is now; or
--                 nothing, if it is not of the usual form. It has few upvalues: each costs time in every call
-- quick_known     what `quick` knows of all runs
-- reply, filled, arg, key   see lib/quick_mutex; here a lone run has a reply too
local reply, filled, key = {now}, 1, 1
if not quick_tried then
  local call, pcall, KEYS, ARGV, keys, runs = redis.call, redis.pcall, KEYS, ARGV, quick_keys, #KEYS / quick_keys
  local is_usual, expiry, freed, waits, locks = true, now + ARGV[2], {}, {}, {}
  for i = 1, runs do
    locks[i], waits[i] = KEYS[keys * (i - 1) + 1], KEYS[keys * (i - 1) + 4]
    if quick_from < 4 then waits[runs + i] = KEYS[keys * (i - 1) + quick_from] end
  end
  local holders = call('EXISTS', unpack(waits)) == 0 and call('MGET', unpack(locks))
  for i = 1, holders and runs or 0 do
    local lock, verb, token, ends, fence, takes = KEYS[key], ARGV[arg], ARGV[arg + 1], 0, 0, 2
    if lock == KEYS[key - keys] then break end
    if verb == 'acquire' then
      takes = not holders[i] and quick(verb, key, arg, quick_known)
      local set = takes and pcall('SET', lock, token, 'PX', ARGV[3], 'NX')
      if not set or not set.ok then break end
      ends, fence = expiry, now
    elseif holders[i] ~= token then
      break
    else
      if verb ~= 'release' then takes, ends = quick(verb, key, arg, quick_known) end
      if not takes then break end
      freed[#freed + 1] = lock
    end
    -- A filter has a level.
    is_usual = is_usual and (fence > 0 or (ends or 0) == 0)
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = 1, ends or 0, fence
    reply[filled + 4], reply[filled + 5], reply[filled + 6] = 0, 0, 0
    filled, arg, key = filled + 6, arg + takes, key + keys
  end
  if freed[1] then call('DEL', unpack(freed)) end
  if key > #KEYS then return is_usual and now or reply end
end
