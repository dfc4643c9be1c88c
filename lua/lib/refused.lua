-- refused: the reply of a script whose command failed: -1 for a key of another type, and `rest`; else the error.
local function refused(failure, ...)
  if string.find(failure.err, 'WRONGTYPE', 1, true) then return {now, -1, ...} end
  return failure
end
