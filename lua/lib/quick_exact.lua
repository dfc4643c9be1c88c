-- quick_exact: see lib/quick_outcome. The usual form is a new item of the kind lib/exact, or one whose holder confirms or
-- releases. Handled items, and the first item of a slice, are left to the script.
local arg, quick_keys, quick_from, quick_known = 6, 6, 4, nil
local function quick(verb, key, at)
  local pcall, digest, takes = redis.pcall, ARGV[at + 3], 4
  if verb == 'acquire' then
    local seen = pcall('HEXISTS', KEYS[key + 1], digest)
    seen = seen == 0 and pcall('HEXISTS', KEYS[key + 4], digest)
    seen = seen == 0 and pcall('HEXISTS', KEYS[key + 5], digest)
    return seen == 0 and takes
  end
  if verb ~= 'complete' then return end
  local slice = math.floor((now + ARGV[at + 2]) / ARGV[5])
  local hash = slice % 3 == 0 and KEYS[key + 1] or slice % 3 == 1 and KEYS[key + 4] or KEYS[key + 5]
  local stored = pcall('HGET', hash, 's')
  local is_current = type(stored) == 'string' and tonumber(stored) == slice
  return is_current and pcall('HSET', hash, digest, '') == 1 and takes
end
