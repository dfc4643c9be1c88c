-- exact: a lease on an item. It is held while the item is handled. The digests of handled items are stored. Time is
-- divided into slices. The slices of a bucket begin earlier by its shift. Slice n is in hash n % 3 of the bucket. The
-- hash's field `s` is n, and each other field is a digest. Three slices count: the current one and the two before it.
-- KEYS      the mark, fifth and sixth are the three hashes of the bucket
-- ARGV      for all runs: the length of a slice (µs); for `look` and `enter`: the shift (µs), the digest
kind.keys, kind.fenced, kind.arguments = 6, false, 2

local function slice_at(base, at)
  return math.floor((now + ARGV[at]) / ARGV[base])
end

-- Finds 1 if the item was handled, in which case there is nothing to do. A later slice, from before the clock was set
-- back, counts.
function kind.look(bypass, base, at)
  local digest = ARGV[at + 1]
  for i = 1, 3 do
    local hash = i == 1 and mark or i == 2 and fifth or sixth
    if call('HEXISTS', hash, digest) == 1 and not bypass then
      if kind.whole(call('HGET', hash, 's')) >= slice_at(base, at) - 2 then return 1, true end
    end
  end
end

-- Stores the digest even if the claim was lost, since the item was handled. The waiters must look again.
function kind.enter(_, base, at)
  local slice, digest = slice_at(base, at), ARGV[at + 1]
  -- Removes nothing. But a server that is out of memory refuses HSET before another write, and an item that is handled must
  -- be stored: its claim, which is larger, is then deleted.
  call('ZREM', beats, '')
  local which = slice % 3
  local hash = which == 0 and mark or which == 1 and fifth or sixth
  local stored = call('HGET', hash, 's')
  if stored and kind.whole(stored) == slice then
    call('HSET', hash, digest, '')
  else
    if stored and kind.whole(stored) < slice then call('UNLINK', hash) end
    -- The digests of a later slice, from before the clock was set back, move to this slice.
    call('HSET', hash, 's', string.format('%d', slice), digest, '')
    call('PEXPIRE', hash, string.format('%d', math.ceil(((slice + 3) * ARGV[base] - ARGV[at] - now) / 1000)))
  end
  return nil, true
end
