-- hold: holds tokens of buckets, raises and renews holds, and captures or releases them.
-- Keys       see buckets
-- Arguments  quotas (see level); then per run: 1 if it is done in all buckets or in none, 0 if it is done in each by itself;
--            then per limit the step, see hold_step
-- Returns    now (µs); then per run and limit a list: the outcome, the tokens of each hold (see hold_step), the state after
--            it (see `told` in bucket). Of a run that is done in none, the states are those without it. -1 if the key does
--            not hold a bucket
-- Writes     changed buckets, SET with PXAT (see bucket; no PXAT if a quota never refills); DEL when idle

-- Returns what hold_step does on the holds `h` of a bucket.
local function run(s, h, text)
  local free = s.blocked > s.now and -1 or bucket.free(s, s.now, 0, s.now)
  return hold_step.run(h, s.now, free, text)
end

-- Does a step that left the holds `h`.
local function finish(cell, text, h, tokens, changes)
  local s = cell.state
  s.holds = h.count > 0 and h or nil
  if tokens > 0 then holds.capture(s, tokens) end
  if changes then buckets.change(cell, hold_step.authorizes(text)) end
end

-- Does a step in one bucket by itself. Returns its answer.
local function alone(cell, text)
  local s = cell.state
  local h = s.holds or holds.none()
  local outcome, amount, tokens, changes = run(s, h, text)
  finish(cell, text, h, tokens, changes)
  return {outcome, amount, bucket.told(s)}
end

-- Does the steps of a run in all buckets, or in none. Returns its answers. `at`: the argument before the first step.
local function together(run_cells, n, args, at)
  local steps, are_done = {}, true
  for p = 1, n do
    local cell = run_cells[p]
    if cell then
      local h = holds.copy(cell.state.holds or holds.none())
      steps[p] = {h, run(cell.state, h, args[at + p])}
    end
    are_done = are_done and cell and steps[p][2] == 1
  end
  local answers = {}
  for p = 1, n do
    local cell, step = run_cells[p], steps[p]
    if step and are_done then finish(cell, args[at + p], step[1], step[4], step[5]) end
    answers[p] = step and {step[2], step[3], bucket.told(cell.state)} or -1
  end
  return answers
end

function operations.hold(keys, args)
  local now, limits, at = clock(), level.limits(args, 2)
  local opened, n, reply = buckets.open(keys, limits, now), #limits, {now}
  for base = 0, #keys - 1, n do
    local run_cells = {}
    for p = 1, n do
      local cell = buckets.cell(opened, opened.places[base + p], limits[p])
      if cell then buckets.renew(cell) end
      run_cells[p] = cell
    end
    local answers = args[at] == '1' and together(run_cells, n, args, at)
    for p = 1, n do
      local cell = run_cells[p]
      reply[base + p + 1] = answers and answers[p] or cell and alone(cell, args[at + p]) or -1
    end
    at = at + 1 + n
  end
  buckets.save(opened)
  return reply
end
