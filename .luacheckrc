-- For the scripts as Redis runs them: the clock, shared pieces and their own file, joined (see tests/scripts.rs).
std = "lua51"
read_globals = {"bit", "redis", "struct", "KEYS", "ARGV"}
max_line_length = 120
max_comment_line_length = 128
unused_secondaries = false
ignore = {
  -- What a shared piece offers, and not every script takes: the keys and notes of the run at hand; numbers of a bucket.
  "2../^holders$", "2../^mark$", "2../^queue$", "2../^beats$", "2../^fifth$", "2../^sixth$", "2../^second$",
  "2../^asker$", "2../^heard$", "2../^found$", "2../^first$",
  -- The Bloom filter calls Redis by pcall, and is joined behind leases, which do not.
  "421/^call$",
}
