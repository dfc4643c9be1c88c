-- quick_unlock: serves a lone release of a mutex by its holder while there are no waiters and no tombstones. It needs no
-- time, and stands before lib/clock. Reading the time takes as long as two other commands.
if ARGV[5] == 'release' and #KEYS == 4 and redis.call('EXISTS', KEYS[4]) == 0 then
  if redis.pcall('GET', KEYS[1]) == ARGV[6] then
    redis.call('DEL', KEYS[1])
    return 0
  end
end
