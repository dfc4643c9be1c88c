-- quick_answer: see lib/quick_outcome. The usual form is a flight without an answer, or one whose leader publishes or
-- releases.
local arg, quick_keys, quick_from, quick_known = 6, 4, 3, nil
local function quick(verb, key, at)
  local mark, takes = KEYS[key + 1], 5
  if verb == 'acquire' then return redis.call('EXISTS', mark) == 0 and takes end
  if verb ~= 'complete' then return end
  if ARGV[at + 2] ~= '0 0' then -- as `enter` in lib/answer
    local answer = string.format('%d ', now) .. ARGV[at + 2] .. ' ' .. ARGV[5] .. ' ' .. ARGV[at + 4]
    if redis.pcall('SET', mark, answer, 'PX', ARGV[at + 3]).err then return end
  end
  return takes
end
