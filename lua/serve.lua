-- serve: runs an operation.
local function serve(keys, args)
  if not call then bind(keys) end
  local operation = operations[args[1]]
  if not operation then return {err = 'ERR no such operation'} end
  local done, reply = protected(operation, keys, args)
  if done then return reply end
  return state.failure(reply) or {clock(), -1, 0, 0, 0, 0, 0}
end
