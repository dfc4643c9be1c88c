-- clock: the built-ins of Redis and Lua that the library calls most, and the server's time.
-- Redis does not expose them while a library loads, so the first call binds them. Nothing else at the top of a file
-- changes after the load: a change by one call would be visible to the next.
local call, attempt, protected, number, format, match, find, sub, floor, ceil, min, max, decode

local function bind(_)
  call, attempt, protected, number = redis.call, redis.pcall, pcall, tonumber
  format, match, find, sub = string.format, string.match, string.find, string.sub
  floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
  decode = struct.unpack
end

-- Returns whole µs since the Unix epoch; below 2^53, so they are exact as a Lua number. A call reads the time once, because
-- two TIME commands in one call may differ.
local function clock()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end
