-- lease/settle: enters what came of leases, gives them back, and sends those who wait to ask anew.
-- KEYS      see lib/lease, per run
-- ARGV      see lib/queue; then what the kind takes for all runs; then per run: token, and what is to be entered
-- returns   now (µs); then per run: 1, or 0 where it was not held any more; 0, 0, 0; and who is to ask anew in this
--           process (0, or a list of messages), or a text: what is in the way, so that nothing was done
-- writes    what is entered, as the kind says; takes away the lease and the queue
prefetch()
base, at = 5, 5 + scope
local reply = each(keys, 5, function()
  asker, at = ARGV[at], at + 1
  local holding = holds(asker)
  local problem, entered = enter(holding)
  if problem then
    heard = problem
    return 0
  end
  if holding then forget(asker) end
  if entered then dismiss(entered) end
  return holding and 1 or 0
end)
finish()
return reply
