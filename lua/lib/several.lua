-- several: lets scripts use several sets of quotas at once, one for each of several buckets, or one for all. Joined
-- after lib/bucket.
-- ARGV: the first set, as in lib/bucket; the number of sets; the other sets; then the script's own arguments, from
-- `first` on. KEYS[i] uses set (i - 1) % #sets + 1.
local sets = {{quotas, burst, num, den}}
first = first + 1
for i = 2, tonumber(ARGV[first - 1]) do
  read_quotas(first)
  sets[i] = {quotas, burst, num, den}
end

-- Selects the quotas of the bucket KEYS[i].
local function under(i)
  quotas, burst, num, den = unpack(sets[(i - 1) % #sets + 1])
end
