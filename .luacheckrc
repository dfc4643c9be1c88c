-- For the pieces of the library, one by one. What a piece offers to those after it is not a global, but a local of the whole.
std = "lua51"
read_globals = {
  "redis", "struct", "bit",
  -- From clock.
  "call", "attempt", "protected", "number", "format", "match", "find", "sub", "floor", "ceil", "min", "max", "decode",
  "bind", "clock",
  -- From state.
  "operations", "kinds", "lift", "horizon", "second", "ranks", "plain",
}
-- The tables of the pieces.
globals = {
  "state", "token", "queue", "grants", "holders", "mutex", "permits", "settings", "flows", "rw_lock", "bloom", "exact",
  "answer", "claim", "leases", "filter", "calendar", "level", "change", "holds", "hold_step", "bucket", "buckets", "bare",
}
max_line_length = 120
max_comment_line_length = 128
unused_secondaries = false
ignore = {
  -- The entries of tables that other pieces made.
  "122/operations", "122/kinds", "122/permits", "143",
  -- What a piece offers.
  "211/^clock$", "211/^bind$", "211/^serve$", "211/^operations$", "211/^lift$", "211/^ranks$", "211/^plain$", "211/^horizon$", "211/^second$", "231", "241",
}
