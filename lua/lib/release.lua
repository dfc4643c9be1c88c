-- release: gives back what a token holds, or its place.

-- `withdrawn`: an acquire of the token that comes later is refused, also a second copy of one that has come. Returns the
-- numbers that the script answers.
local function release(token, withdrawn)
  local was = 0
  if kind.forget(token) then
    was = 1
  elseif waiting and waiters.leave(token) then
    was = 2
  end
  if withdrawn then
    waiting, waiters = true, waiters or new_waiters()
    waiters.leave(token) -- one with the value of who held may wait
    waiters.bury(token)
  end
  if waiting then waiters.grant() end
  return was, 0, 0, 0
end
