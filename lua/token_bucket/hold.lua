-- token_bucket/hold: holds tokens of buckets, raises and renews holds, and captures or releases them.
-- KEYS[i]  string, the bucket of run i; the runs of one bucket are adjacent
-- ARGV     quotas (see lib/bucket); then per run, on up to 32 holds of a block (see lib/holds), a text: step (1 byte; 0:
--          authorize, 1: extend or renew, 2: capture or release), 1 if the holds are charged when they end by themselves
--          (1 byte), block (16 bytes), mask (4 bytes), number of holds (1 byte), tokens of each, or to charge for all (8
--          bytes), ttl (µs), or tokens to charge if none of the holds to capture is left (8 bytes); to capture several
--          also, for each in the order of the mask, tokens to charge, and if it is gone (4 bytes each)
-- returns  now (µs); then per run a list: 0 refused, 1 done, 2 there is no such hold, 3 the key has too many holds, or if
--          the holds may have different answers a text (see lib/hold_step); the tokens of each hold, before a capture or
--          after another step; the state after the run (see lib/bucket or lib/bare), and of a bare state with holds also
--          the tokens that are held and the earliest end (µs). -1 if the key does not hold a bucket
-- writes   changed buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills); DEL when idle
-- cost     one GET (one bucket) or MGET, one SET per changed bucket; the read again if a bucket is not bare, and if one
--          run is not an authorization or a capture of one hold that has its own record
local with = on_holds()
local takes -- the key of which tokens were held last
return each_run(function(s, i, is_new)
  local free = s[1] > now and -1 or on.free(s, now, 0)
  local h = s.holds or {held = 0, captures = 0, next = 0, last = 0}
  local outcome, amount, tokens, changes = hold_step(h, free, ARGV[first + i - 1], KEYS[i] == KEYS[i + 1])
  s.holds = h.count > 0 and h or nil
  if string.byte(ARGV[first + i - 1]) == 0 then takes = KEYS[i] end
  tokens = min(tokens, 2 ^ 37) -- of 32 holds
  -- Less than 2^32 at a time, so that all products are exact.
  while tokens > 0 do
    local some = min(tokens, 2 ^ 32 - 1)
    with.settle(s, now, some, quotas)
    tokens = tokens - some
  end
  return {outcome, amount, on.told(s)}, changes or is_new
end, function(key, s) return on.save(key, s, false, key ~= takes) end)
