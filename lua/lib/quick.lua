-- quick: token_bucket/reserve for one bucket whose state is bare (see lib/bare) or missing. On a Cluster nearly all
-- calls are such, and creating the functions of the whole script takes longer than the work. Otherwise it does nothing,
-- and the script goes on. Joined before lib/bucket.
if #KEYS == 1 and #ARGV[2] == 25 then -- one quota
  local redis, string, struct, ARGV, limit = redis, string, struct, ARGV, 9007199254740992
  local quota, num, parts, burst = ARGV[1], struct.unpack('>xddd', ARGV[2])
  local raw, whole, part, seen
  if num > 0 then raw, whole, part = redis.pcall('GET', KEYS[1]), 0, 0 end
  if raw then
    -- An error of GET is a table.
    local ending
    whole, part, ending = string.match(type(raw) == 'string' and raw or '', '^(%d+) (%d+) (.*)$')
    if ending then whole, part = whole + 0, part + 0 end
    if ending ~= quota then
      seen = ending and string.match(ending, '^' .. quota .. ' (%d+)$')
      whole, seen = seen and whole, tonumber(seen)
    end
  end
  if whole and whole < limit and part < parts then
    local cost, wait, count = struct.unpack('>xddd', ARGV[3])
    local full, price = burst * num, cost * num
    local top, ahead = wait * parts + full, whole < now and 0 or (whole - now) * parts + part
    local set_back = seen and seen > now or ahead > full and not seen
    if not set_back and ahead < limit and (top < limit or ahead + count * price < limit) then
      local free, before = top - ahead, ahead
      local all = count * price <= free
      if not all then count = free >= price and math.floor(free / price) or 0 end
      if count > 0 and price > 0 then
        ahead = ahead + count * price
        part = ahead % parts
        whole = now + (ahead - part) / parts
        local idle = part > 0 and whole + 1 or whole
        local expiry = string.format('%d', (idle - idle % 1000000 + 1000000) / 1000) -- as `pxat` in lib/bucket
        if ahead > full then quota = string.format('%s %d', quota, now) end
        local saved = redis.pcall('SET', KEYS[1], string.format('%d %d %s', whole, part, quota), 'PXAT', expiry)
        if saved.err then return saved end
      end
      if all and before == 0 then return now end
      return string.format('%d %d %d', now, count, before)
    end
  end
end
