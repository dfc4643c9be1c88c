-- complete: enters the outcome of a lease, releases the lease, and tells the waiters to ask again.

-- `at`: the first argument for `enter` in ARGV. Returns the four numbers of the reply.
local function complete(token, _, at)
  local holding = kind.owns(token)
  local problem, entered, level = kind.enter(holding, 5, at)
  if problem then
    found = problem
    return 0, 0, 0, 0
  end
  local status = holding and 1 or kind.free() and 0 or 2
  if holding then kind.forget(token) end
  if entered and waiting then waiters.dismiss(entered) end
  length, before, ends, settled = nil, nil, nil, false
  return status, level or 0, 0, 0
end
