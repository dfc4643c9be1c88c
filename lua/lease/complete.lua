-- lease/complete: enters the outcomes of leases, releases the leases, and tells the waiters to ask again.
-- KEYS      see lib/lease, per run
-- ARGV      see lib/queue; then the arguments of the kind for all runs; then per run: the token, and what `enter` takes
-- returns   now (µs); then per run: 1, or if the token held no longer 0, or 2 if another holds (-1: a key is of another
--           type); how full the filter is now, for kinds that have one, else 0; 0; 0; the waiters of this process that
--           must ask again (0, or a list of messages, see lib/queue), or a text: why nothing was entered or released
-- writes    the outcome, as the kind says; deletes the lease and the queue
local waiters, at = new_waiters(), 5 + kind.scope
kind.read()
local names = {}
for i = 4, #KEYS, kind.keys do names[#names + 1] = KEYS[i] end
local somebody_waits = call('EXISTS', unpack(names)) > 0 -- at any key of the call
local reply = lease.each(5, function()
  local token, own = ARGV[at], at + 1
  asker, at = token, own + kind.entries(5)
  local holding = kind.owns(token)
  local problem, entered, level = kind.enter(holding, 5, own)
  if problem then return 0, 0, 0, 0, problem end
  if holding then kind.forget(token) end
  if entered and somebody_waits then waiters.dismiss(entered) end
  return holding and 1 or kind.used() > 0 and 2 or 0, level or 0, 0, 0, heard
end)
kind.write()
return reply
