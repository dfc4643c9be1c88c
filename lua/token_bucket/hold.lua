-- token_bucket/hold: holds tokens of buckets, raises and renews holds, and captures or releases them.
-- KEYS[i]  string, the bucket of run i; the runs of one bucket are adjacent
-- ARGV     quotas (see lib/bucket); then per run a text of 34 bytes: step (1 byte; 0: authorize, 1: extend or renew, 2:
--          capture or release), 1 if the hold is charged when it ends by itself (1 byte), id (16 bytes), tokens (4 bytes),
--          ttl (8 bytes, µs), tokens to charge if a hold to capture is gone (4 bytes)
-- returns  now (µs); then per run a list: 0 refused, 1 done, 2 there is no such hold, 3 the key has too many holds; the
--          tokens of the hold, before a capture or after another step; the state after it (see lib/bucket or lib/bare),
--          and of a bare state with holds also the tokens that are held and the earliest end (µs). -1 if the key does not
--          hold a bucket
-- writes   changed buckets, SET with PXAT (see lib/bucket; no PXAT if a quota never refills); DEL when idle
-- cost     one GET (one bucket) or MGET, one SET per changed bucket; both reads if a bucket is not bare
local with = on_holds()
return each_run(function(s, i, is_new)
  local free = s[1] > now and -1 or on.free(s, now, 0)
  local h = s.holds or {held = 0, captures = 0, next = 0, last = 0, tail = ''}
  local outcome, amount, tokens, changes = hold_step(h, free, ARGV[first + i - 1])
  s.holds = h.count > 0 and h or nil
  if tokens > 0 then with.settle(s, now, tokens, quotas) end
  return {outcome, amount, on.told(s)}, changes or is_new
end, on.save)
