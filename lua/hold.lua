-- hold: holds tokens of buckets, raises and renews holds, and captures or releases them.
-- Keys       see buckets
-- Arguments  quotas (see level); then per run: 1 if it is done in all buckets or in none, 0 if it is done in each
--            bucket alone; then per limit the step, see hold_step
-- Returns    now (µs); then per run and limit a list: the outcome, the tokens of each hold (see hold_step), the state
--            after it (see `told` in bucket). If a run is done in none, the states are those without it. -1 if the key
--            does not hold a bucket
-- Writes     changed buckets, SET with PXAT (see bucket; no PXAT if a quota never refills); DEL when idle

-- Runs hold_step on the holds `h` of a bucket. Returns its results.
local function run(s, h, text)
  local free = s.blocked > s.now and -1 or bucket.free(s, s.now, 0, s.now)
  return hold_step.run(h, s.now, free, text)
end

-- Completes a step that resulted in the holds `h`.
local function finish(s, text, h, tokens, changes)
  s.holds = h.count > 0 and h or nil
  if tokens > 0 then holds.capture(s, tokens) end
  if changes then bucket.change(s, hold_step.authorizes(text)) end
end

-- Runs a step in one bucket alone. Returns its result.
local function alone(s, text)
  local h = s.holds or holds.none()
  local outcome, amount, tokens, changes = run(s, h, text)
  finish(s, text, h, tokens, changes)
  return {outcome, amount, bucket.told(s)}
end

-- Runs the steps of a run in all its buckets, or in none. Appends the results to the reply. `at`: the argument before
-- the first step.
local function together(each, args, at, reply)
  local steps, are_done, n = {}, true, #each
  for p = 1, n do
    local s = each[p]
    if s then
      local h = holds.copy(s.holds or holds.none())
      steps[p] = {h, run(s, h, args[at + p])}
    end
    are_done = are_done and s and steps[p][2] == 1
  end
  for p = 1, n do
    local s, step = each[p], steps[p]
    if step and are_done then finish(s, args[at + p], step[1], step[4], step[5]) end
    reply[#reply + 1] = step and {step[2], step[3], bucket.told(s)} or -1
  end
end

function operations.hold(keys, args)
  local now, limits, at = clock(), level.limits(args, 2)
  local opened, n, reply = {}, #limits, {now}
  for base = 0, #keys - 1, n do
    local each = args[at] == '1' and {}
    for p = 1, n do
      local s = buckets.open(opened, keys[base + p], limits[p], now)
      if s then bucket.renew(s) end
      if each then each[p] = s else reply[base + p + 1] = s and alone(s, args[at + p]) or -1 end
    end
    if each then together(each, args, at, reply) end
    at = at + 1 + n
  end
  buckets.save(opened, keys)
  return reply
end
