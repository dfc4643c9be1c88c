-- release: gives back what a token holds, or its place.
local owed -- whether something was given back of the key at hand that is not granted yet

-- `withdrawn`: an acquire of the token that comes later is refused, also a second copy of one that has come. `more`: what
-- comes next is a release of the same key, which grants for both. Returns the numbers that the script answers.
local function release(token, withdrawn, _, more)
  local was = kind.forget(token) and 1 or 0
  if was == 0 and owed then
    settle()
    was = kind.forget(token) and 1 or 0
  end
  if was == 0 and waiting and waiters.leave(token) then was = 2 end
  if withdrawn then
    waiting, waiters = true, waiters or new_waiters()
    waiters.leave(token) -- one with the value of who held may wait
    waiters.bury(token)
  end
  owed = more
  if not more then settle() end
  return was, 0, 0, 0
end
