-- lease/complete: enters what came of leases, gives them back, and sends those who wait to ask anew.
-- KEYS      see lib/lease, per run
-- ARGV      see lib/queue; then what the kind takes for all runs; then per run: token, and what is to be entered
-- returns   now (µs); then per run: 1, or 0 where it was not held any more; how full it is by now, for kinds that tell, else 0;
--           0, 0; who is to ask anew in this process (0, or a list of messages, see lib/queue), or a text: what is in the
--           way, so that nothing was done
-- writes    what is entered, as the kind says; takes away the lease and the queue
local waiters, at = new_waiters(), 5 + kind.scope
kind.read()
local names = {}
for i = 4, #KEYS, kind.keys do names[#names + 1] = KEYS[i] end
local somebody_waits = call('EXISTS', unpack(names)) > 0 -- for any key of the call
local reply = lease.each(5, function()
  local token, own = ARGV[at], at + 1
  asker, at = token, own + kind.entries(5)
  local holding = kind.owns(token)
  local problem, entered, level = kind.enter(holding, 5, own)
  if problem then return 0, 0, 0, 0, problem end
  if holding then kind.forget(token) end
  if entered and somebody_waits then waiters.dismiss(entered) end
  return holding and 1 or 0, level or 0, 0, 0, heard
end)
kind.write()
return reply
