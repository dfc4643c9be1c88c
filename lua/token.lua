-- token: the name of a lease or a waiter. It is 16 hexadecimal digits that name the process, `-`, the id (hexadecimal), `.`
-- and the ttl (hexadecimal, µs), `~` and the fence_ttl (hexadecimal, ms), and what the kind adds. The id, the ttl and the
-- fence_ttl may be missing. Times are whole µs below 2^53: Redis writes such numbers exactly, in commands and in replies.

-- Returns the process.
function token.process(text)
  return sub(text, 1, 16)
end

function token.id(text)
  return match(text, '^%x+', 18)
end

-- Returns the ttl (µs); nil or false if there is none, as in a value that another library wrote.
function token.ttl(text)
  local at, ttl = match(text, '^%x+%-()%x+%.(%x+)')
  return at == 18 and number(ttl, 16)
end

-- Returns how long the mark with the fence is kept (ms), and whether the token sets this. Never less than its lease.
function token.fence_ttl(text, expiry, now)
  local ttl = match(text, '^%x+%.%x+~(%x+)', 18)
  if not ttl then return 691200000 end -- 8 days
  return max(number(ttl, 16), ceil((expiry - now) / 1000) + 1), true
end
