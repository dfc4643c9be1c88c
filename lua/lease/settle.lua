-- lease/settle: enters what came of leases, gives them back, and sends those who wait to ask anew.
-- KEYS      see lib/lease, per run
-- ARGV      see lib/queue; then what the kind takes for all runs; then per run: token, and what is to be entered
-- returns   now (µs); then per run: 1, or 0 where it was not held any more; 0, 0, 0; and who is to ask anew in this
--           process (0, or a list of messages)
-- writes    what is entered, as the kind says; takes away the lease and the queue
prefetch()
base, at = 5, 5 + scope
local reply = each(keys, 5, function()
  asker, at = ARGV[at], at + 1
  local holding = holds(asker)
  enter(holding)
  if not holding then return 0 end
  forget(asker)
  dismiss()
  return 1
end)
finish()
return reply
