-- clock: the server's time, read once per script, because two TIME calls in one script may differ.
-- now  whole microseconds since the Unix epoch; below 2^53, so it is exact as a Lua number
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
