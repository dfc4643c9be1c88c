-- learn: stores the quotas that an upstream sent, and grants a correction of a level.
-- Keys       string: when the request was charged whose response brought the quotas (µs); responses to requests that
--            were charged until this time (µs) correct no level; the quotas (text)
-- Arguments  when the request was charged whose response brought the new data (µs; 0: only read); the quotas (empty:
--            none were sent); 1: a level is above the upstream's, 0: it is not
-- Returns    now (µs); 1: correct the level, 0: do not, -1: the key is of another type; the quotas (empty: none)
-- Writes     SET with PXAT: 7 days
local remembered, settling = 604800000000, 100000 -- µs

function operations.learn(keys, args)
  local now, raw = clock(), attempt('GET', keys[1])
  if type(raw) == 'table' then return state.refused(now, raw, '') end
  local order, corrected, quotas = match(raw or '', '^(%d+) (%d+) (.*)$')
  -- The clock may have been set back.
  order, corrected = min(number(order or 0), now), min(number(corrected or 0), now + settling)
  local news, corrects = min(number(args[2]), now), 0
  if args[3] ~= '' and news > order then order, quotas = news, args[3] end
  if args[4] == '1' and news > corrected then corrected, corrects = now + settling, 1 end
  if order > 0 or corrected > 0 then
    local value = format('%d %d %s', order, corrected, quotas or '')
    call('SET', keys[1], value, 'PXAT', format('%d', (now + remembered) / 1000))
  end
  return {now, corrects, quotas or ''}
end
