-- quick: token_bucket/reserve for one bucket whose state is bare (see lib/bucket) or missing. On a Cluster nearly all calls
-- are such, and creating the functions of the whole script takes longer than the work. Joined before lib/bucket.
if #KEYS == 1 and ARGV[1] == '1' and ARGV[4] == '1' and ARGV[3] ~= '0' then
  local sub, ending = string.sub, ' 0 ' .. ARGV[3] .. ' 1 ' .. ARGV[2]
  local raw, tat = redis.pcall('GET', KEYS[1]), nil
  if not raw then
    tat = 0
  elseif type(raw) == 'string' and sub(raw, -#ending) == ending then
    tat = tonumber(sub(raw, 1, -#ending - 1))
  end
  if tat and (not raw or tat > 0) and tat < 9007199254740992 then
    local price, count = ARGV[5] * ARGV[3], tonumber(ARGV[7])
    local new = tat < now and now or tat
    local free = now + ARGV[6] + ARGV[2] * ARGV[3] - new
    if count * price > free then count = free >= price and math.floor(free / price) or 0 end
    if count > 0 and price > 0 then
      new = new + count * price
      local expiry = (new - new % 1000000 + 1000000) / 1000 -- as `pxat` in lib/bucket
      local saved = redis.pcall('SET', KEYS[1], string.format('%d', new) .. ending, 'PXAT', expiry)
      if type(saved) == 'table' and saved.err then return saved end
    end
    return {now, count, tat}
  end
end
