-- exact: a lease on an item. It is held while the item is handled. The digests of handled items are stored. Time is
-- divided into slices. The slices of a bucket begin earlier by its shift. Slice n is in hash n % 3 of the bucket. The
-- hash's field `s` is n, and each other field is a digest. Three slices count: the current one and the two before it.
-- Keys       the mark, the fifth and the sixth are the three hashes of the bucket
-- Arguments  for all runs: the length of a slice (µs); for `look` and `enter`: the shift (µs), the digest

local hashes = {[0] = 1, 4, 5} -- the offset of a slice's hash from the first key

local function slice_at(args, at, now)
  return floor((now + args[at]) / args[4])
end

-- Finds 1 if the item was handled; then the work is done. A later slice, from before the clock was set back, counts.
function exact.look(keys, first, args, at, now, bypass)
  local digest = args[at + 1]
  for which = 0, 2 do
    local hash = keys[first + hashes[which]]
    if call('HEXISTS', hash, digest) == 1 and not bypass then
      if state.whole(call('HGET', hash, 's')) >= slice_at(args, at, now) - 2 then return 1, true end
    end
  end
end

function exact.is_small()
  return true
end

-- Stores the digest even if the claim was lost, because the item was handled. The waiters must look again.
function exact.enter(keys, first, args, at, now)
  local slice, digest = slice_at(args, at, now), args[at + 1]
  local hash = keys[first + hashes[slice % 3]]
  local stored = call('HGET', hash, 's')
  if stored and state.whole(stored) == slice then
    call('HSET', hash, digest, '')
  else
    if stored and state.whole(stored) < slice then call('UNLINK', hash) end
    -- The digests of a later slice, from before the clock was set back, move to this slice.
    call('HSET', hash, 's', format('%d', slice), digest, '')
    call('PEXPIRE', hash, format('%d', ceil(((slice + 3) * args[4] - args[at] - now) / 1000)))
  end
  return nil, true
end

kinds.exact = {holders = mutex, outcome = exact, keys = 6, ttl = 5, looks = 2, enters = 2}

-- Checks that all processes use the same layout for a name.
-- Keys       string, the layout
-- Arguments  the layout; its time to live (ms); or none: the stored layout is only read
-- Returns    now (µs); then 1, or -1 if the key has another type, or the stored layout if it differs; nothing changes
--            unless 1 is returned
function operations.open_layout(keys, args)
  local now, stored = clock(), attempt('GET', keys[1])
  if type(stored) == 'table' then return state.refused(now, stored) end
  if stored and stored ~= args[2] then return {now, sub(stored, 1, 200)} end
  local saved = args[2] and attempt('SET', keys[1], args[2], 'PX', args[3])
  if saved and saved.err then return saved end
  return {now, 1}
end

-- Returns whether an item was handled.
-- Keys       the three hashes of the bucket
-- Arguments  the length of a slice (µs), the shift (µs), the digest
-- Returns    now (µs); 1: it was handled; 0: it was not; -1: a key is of another type
function operations.look_at_item(keys, args)
  local now = clock()
  local oldest = floor((now + args[3]) / args[2]) - 2
  for _, hash in ipairs(keys) do
    local found = attempt('HEXISTS', hash, args[4])
    if type(found) == 'table' then return state.refused(now, found) end
    if found == 1 and (number(call('HGET', hash, 's') or 0) or 0) >= oldest then return {now, 1} end
  end
  return {now, 0}
end

-- Removes a handled item, so that it is new again.
-- Keys       the three hashes of the bucket
-- Arguments  the digest
-- Returns    now (µs); 1: it was stored; 0: it was not; -1: a key is of another type
function operations.forget_item(keys, args)
  local now, stored = clock(), 0
  for _, hash in ipairs(keys) do
    local gone = attempt('HDEL', hash, args[2])
    if type(gone) == 'table' then return state.refused(now, gone) end
    stored = max(stored, gone)
  end
  return {now, stored}
end
