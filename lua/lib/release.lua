-- release: releases the lease of a token, or its place in the queue.
local owed -- whether a lease of this key was released in this call, and not granted yet

-- `withdrawn`: an acquire of the token that runs later is refused, also a second copy of one that ran. `more`: the
-- next run is a release of the same key, which then grants for both. Returns the four numbers of the reply.
local function release(token, withdrawn, _, more)
  local was = kind.forget(token) and 1 or 0
  if was == 0 and owed then
    settle()
    was = kind.forget(token) and 1 or 0
  end
  if was == 0 and waiting and waiters.leave(token) then was = 2 end
  if withdrawn then
    waiting, waiters = true, waiters or new_waiters()
    waiters.leave(token) -- a waiter may carry the value of the holder
    waiters.bury(token)
  end
  owed, settled = more, false
  if not more then settle() end
  return was, 0, 0, 0
end
