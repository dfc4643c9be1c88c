-- exact: a lease on an item, held while the item is handled; of one that was handled the digest is kept. Time is cut into
-- slices; those of a bucket begin earlier by its shift. Slice n is in hash n % 3 of the bucket: its field `s` is n, each
-- other field is a digest. Three slices count: the current one and the two before it.
-- KEYS      the mark, fifth and sixth are the three hashes of the bucket
-- ARGV      for all runs: how long a slice lasts (µs); to look and to enter: the shift (µs), the digest
kind.keys, kind.fenced, kind.scope = 6, false, 1

function kind.queries()
  return 2
end

kind.entries = kind.queries

local function slice_at(base, at)
  return math.floor((now + ARGV[at]) / ARGV[base])
end

-- Finds 1 where it was handled: then there is nothing to do. What is of a later slice, from before the clock was set back,
-- counts.
function kind.look(bypass, base, at)
  local digest = ARGV[at + 1]
  for i = 1, 3 do
    local hash = i == 1 and mark or i == 2 and fifth or sixth
    if call('HEXISTS', hash, digest) == 1 and not bypass then
      if kind.whole(call('HGET', hash, 's')) >= slice_at(base, at) - 2 then return 1, true end
    end
  end
end

-- What was handled was handled, whoever holds the claim by now: those who wait need to look again.
function kind.enter(_, base, at)
  local slice, digest = slice_at(base, at), ARGV[at + 1]
  local which = slice % 3
  local hash = which == 0 and mark or which == 1 and fifth or sixth
  local stored = call('HGET', hash, 's')
  if stored and kind.whole(stored) == slice then
    call('HSET', hash, digest, '')
  else
    if stored and kind.whole(stored) < slice then call('UNLINK', hash) end
    -- What is from before the clock was set back is dated anew.
    call('HSET', hash, 's', string.format('%d', slice), digest, '')
    call('PEXPIRE', hash, string.format('%d', math.ceil(((slice + 3) * ARGV[base] - ARGV[at] - now) / 1000)))
  end
  return nil, true
end
