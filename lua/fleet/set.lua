-- fleet/set: adds a version of a setting if the last one is the expected one, and tells all processes.
-- KEYS[1]   list, the versions, the oldest first: `number at id`, who, and `+text` or `-`, separated by line feeds
-- ARGV      the number of the expected version, 0: none; the id of this call; who sets it; the value, `+text`, or
--           empty: that of the version before the last, `-` if there is none; how many versions are kept; the channel
--           of all processes; the beginning of the message
-- returns   now (µs); 1: it was added, also by an earlier copy of this call; 0: the last version is another one;
--           -1: the key is of another type; -2: the last version, or the one to go back to, is not recognised; then the
--           added or the last version, empty if there is none
-- writes    the list, without a ttl: RPUSH, LTRIM
-- cost      O(1): there are at most 10 versions
local expected, id, who, value, kept = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local versions = redis.pcall('LRANGE', KEYS[1], -kept, -1)
if versions.err then return refused(versions, '') end
for _, version in ipairs(versions) do
  if string.match(version, '^%d+ %d+ (%x+)\n') == id then return {now, 1, version} end
end
-- Returns the number, the time and the value of a version that has less than `most` of both.
local function parts(version, most)
  local number, at, text = string.match(version, '^(%d+) (%d+) %x+\n[^\n]*\n([-+].*)$')
  number, at = tonumber(number or '') or most, tonumber(at or '') or most
  if number < most and at < most then return number, at, text end
end
local last, before = versions[#versions], versions[#versions - 1]
local number, at = 0, 0
if last then number, at = parts(last, 2^52) end
if not number then return {now, -2, ''} end
if number ~= expected then return {now, 0, last or ''} end
if value == '' then value = before == nil and '-' or select(3, parts(before, 2^53)) end
if not value then return {now, -2, ''} end
local added = string.format('%.0f %.0f %s\n%s\n%s', number + 1, math.max(now, at + 1), id, who, value)
local saved = redis.pcall('RPUSH', KEYS[1], added)
if type(saved) == 'table' then return saved end
redis.call('LTRIM', KEYS[1], -kept, -1)
-- A user may lack the permission: the other processes then find the version by their next read.
redis.pcall('PUBLISH', ARGV[6], ARGV[7] .. added)
return {now, 1, added}
