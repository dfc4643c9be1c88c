-- quick_claim: see lib/quick_outcome. The usual form is a new item of a filter, or one whose holder confirms or releases.
-- Handled items, and the first item of a generation or after an eviction, are left to the script.
local arg, quick_keys, quick_from, quick_tried = 9, 6, 4, false
local quick_known = {hashes = tonumber(ARGV[6]), generation = 0}
if ARGV[7] ~= '0' then quick_known.generation = math.floor(now / ARGV[7]) end
-- `known`: also the words of a command, the filter whose configuration is known, and the bits set in the samples of those
-- arrays that exist.
local function quick(verb, key, at, known)
  local call, pcall, concat, hashes, generation = redis.call, redis.pcall, table.concat, known.hashes, known.generation
  local gets, forgets = verb == 'acquire', ARGV[7] ~= '0'
  local bits, other = KEYS[key + 4 + generation % 2], forgets and KEYS[key + 5 - generation % 2]
  if not gets and verb ~= 'complete' then return end
  if KEYS[key + 1] ~= known.filter then
    local want = forgets and ARGV[5] .. string.format('%d', generation) or ARGV[5]
    if pcall('GET', KEYS[key + 1]) ~= want then return end
  end
  if not gets and not known[bits] and call('EXISTS', bits) == 0 then return end
  known.filter = KEYS[key + 1]
  local width = gets and 3 or 4
  for hash = 1, hashes do
    local word = width * hash - width
    known[word + 1], known[word + 2], known[word + 3] = gets and 'GET' or 'SET', 'u1', ARGV[at + 1 + hash]
    if not gets then known[word + 4] = '1' end
  end
  if gets then
    -- The bits as a text; empty for an error.
    local new = concat(pcall('BITFIELD_RO', bits, unpack(known, 1, 3 * hashes)))
    local old = other and concat(pcall('BITFIELD_RO', other, unpack(known, 1, 3 * hashes))) or '0'
    return string.find(new, '0', 1, true) and string.find(old, '0', 1, true) and 2 + hashes
  end
  if pcall('BITFIELD', bits, unpack(known, 1, 4 * hashes)).err then return end
  known[bits] = known[bits] or call('BITCOUNT', bits, 0, 4095)
  return 2 + hashes, known[bits]
end
