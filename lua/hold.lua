-- hold: holds tokens of buckets, raises and renews holds, and captures or releases them.
-- Keys       see buckets
-- Arguments  quotas (see level); then per run: 1 if it is done in all buckets or in none, 0 if it is done in each by itself;
-- then
--            per limit the step, see hold_step
-- Returns    now (µs); then per run and limit a list: the outcome, the tokens of each hold (see hold_step), the state after
--            it
--            (see `told` in bucket). Of a run that is done in none, the states are those without it. -1 if the key does not
--            hold a
--            bucket
-- Writes     changed buckets, SET with PXAT (see bucket; no PXAT if a quota never refills); DEL when idle

-- Returns the step on a bucket: {the holds after it, outcome, tokens of each hold, tokens to charge, whether anything
-- changed}.
-- `copies`: the holds of the state stay as they are.
local function step_of(s, text, copies)
  local h = s.holds or {count = 0, held = 0, captures = 0, next = 0, last = 0, text = '', from = 1}
  if copies then h = holds.copy(h) end
  local free = s.blocked > s.now and -1 or bucket.free(s, s.now, 0, s.now)
  return {h, hold_step.run(h, s.now, free, text)}
end

-- Does a step.
local function finish(cell, text, h, tokens, changes)
  local s = cell.state
  s.holds = h.count > 0 and h or nil
  holds.capture(s, tokens)
  if changes then buckets.change(cell, hold_step.authorizes(text)) end
end

function operations.hold(keys, args)
  local now, limits, at = clock(), level.limits(args, 2)
  local cells, n, reply = buckets.open(keys, limits), #limits, {now}
  for base = 0, #keys - 1, n do
    local steps, is_together, is_done = {}, args[at] == '1', true
    for p = 1, n do
      local cell, text = cells[keys[base + p]], args[at + p]
      local s = buckets.state(cell, limits[p], now)
      if s then buckets.renew(cell) end
      steps[p] = s and step_of(s, text, is_together)
      if is_together and not (s and steps[p][2] == 1) then is_done = false end
    end
    for p = 1, n do
      local cell, step, answer = cells[keys[base + p]], steps[p], -1
      if step then
        if is_done then finish(cell, args[at + p], step[1], step[4], step[5]) end
        answer = {step[2], step[3], bucket.told(cell.state)}
      end
      reply[base + p + 1] = answer
    end
    at = at + 1 + n
  end
  buckets.save(cells)
  return reply
end
