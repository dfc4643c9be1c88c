-- quick_holds: token_bucket/hold for any runs on buckets that are bare (see lib/bare) apart from their holds, or missing.
-- If another bucket or a hold that has ended is among them, it writes nothing, and the script goes on. Joined after
-- lib/quick_hold and lib/hold_step.
local function quick_holds()
  local keys, nth, reply, writes = {}, 0, {now}, {}
  for i, key in ipairs(KEYS) do
    if key ~= KEYS[i - 1] then keys[#keys + 1] = key end
  end
  local raw = #keys > 1 and redis.call('MGET', unpack(keys)) or {redis.pcall('GET', KEYS[1])}
  local h, ahead, numbers, changed, takes
  for i, key in ipairs(KEYS) do
    if key ~= KEYS[i - 1] then
      nth = nth + 1
      -- MGET finds nothing in a key of another type; GET fails on it.
      local stored = raw[nth] or #keys > 1 and redis.pcall('GET', key)
      h, changed = {text = stored or ''}, false
      ahead, numbers, h.from, h.count, h.held, h.captures, h.next, h.last = read_held(stored)
      if not ahead then return nil end
    end
    if string.byte(ARGV[2 + i]) == 0 then takes = key end
    local free = math.floor((per_burst - ahead) / per_token) - h.held
    local outcome, amount, tokens, changes = hold_step(h, free, ARGV[2 + i], key == KEYS[i + 1])
    if tokens > 0 then ahead, numbers = ahead + tokens * per_token, nil end
    -- More than that is owed in table form.
    if ahead >= exact or ahead / per_micro > 2 ^ 50 then return nil end
    changed = changed or changes
    reply[i + 1] = h.count > 0 and {outcome, amount, ahead, h.held, h.next} or {outcome, amount, ahead}
    if changed and key ~= KEYS[i + 1] then writes[#writes + 1] = {h, key, ahead, numbers, key ~= takes} end
  end
  for _, state in ipairs(writes) do
    local key, frees
    h, key, ahead, numbers, frees = unpack(state, 1, 5)
    local saved = write_held(frees, key, ahead, numbers, h.count, h.held, h.captures, h.next, h.last, h.text, '', '')
    if type(saved) == 'table' and saved.err then return saved end
  end
  return reply
end

if is_bare then
  local reply = quick_holds()
  if reply then return reply end
end
