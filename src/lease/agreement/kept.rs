//! Checks that every key outlives its contents: after each step, its ttl is at least the remaining time of every lease,
//! tombstone and heartbeat in it, and the time until the next access. It is at most the time that *Guarantees* states.
//!
//! The checks read only Redis, so that they do not repeat a mistake that Lua and Rust share.

use crate::lease::agreement::virtual_time::Time;
use crate::lease::agreement::{States, Tried};
use crate::lease::kind::Holders as _;
use crate::sync::lock;

/// ARGV: the latest time so far; by how much the clock was set back (µs); the length of a slice of exact claims (µs),
/// and the number of their buckets.
const CHECK: &str = "
local lift, day, second = 4503599627370496, 24 * 3600 * 1000000, 1000000
local now = tonumber(redis.call('GET', 'clock'))
local heartbeat = 2 * second -- until a waiter touches its place again
local latest, back, slice, buckets = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local problems, key, ends = {}, nil, nil

local function beside(part)
  return (string.gsub(key, '[^:]*$', part, 1))
end

-- ReplyKind was written before the clock was set back lasts longer than it was asked for.
local function least(what, time)
  if ends >= time - back then return end
  problems[#problems + 1] = string.format('%s: expires %d us before %s', key, time - ends, what)
end

local function most(span)
  if ends <= latest + span then return end
  problems[#problems + 1] = string.format('%s: is kept for %d us too long', key, ends - latest - span)
end

local function places()
  for _, token in ipairs(redis.call('ZRANGE', beside('waiters'), 0, -1)) do
    local beat = tonumber(redis.call('ZSCORE', beside('beats'), token) or 0)
    if beat < lift then least('the next heartbeat of ' .. token, beat + heartbeat) end
  end
  most(60 * second)
end

local function ends_of(other)
  return tonumber(redis.call('HGET', 'ends', other) or 0)
end

local rules = {waiters = places, flows = places}

function rules.beats()
  local members = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #members, 2 do
    local score = tonumber(members[i + 1])
    if score < lift then least('the next heartbeat of ' .. members[i], score + heartbeat) end
    if score > lift then least('the tombstone of ' .. members[i], score - lift) end
  end
  most(60 * second)
end

function rules.holders()
  local members = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #members, 2 do
    local score = tonumber(members[i + 1])
    if score < lift then
      least('the lease of ' .. members[i], score)
      -- A writer's fence lives longer than its lease.
      if score > now and string.find(members[i], '^[^/]*/w%d+$') and ends_of(beside('fence')) < score - back then
        problems[#problems + 1] = string.format('%s: the fence expires at %d, the lease of %s at %d', key,
          ends_of(beside('fence')), members[i], score)
      end
    end
  end
  most(2 * day)
end

function rules.lock()
  local mark = beside('fence')
  if redis.call('EXISTS', mark) == 1 and ends_of(mark) < ends - back then
    problems[#problems + 1] = key .. ': its fence expires earlier'
  end
end
rules.claim = rules.lock

function rules.fence()
  local fence, own = string.match(redis.call('GET', key), '^(%d+)(.*)$')
  if own == '' then least('the week of its last grant', fence + 7 * day) end
  most(8 * day)
end

function rules.answer()
  local stale = string.match(redis.call('GET', key), '^%d+ (%d+) ')
  least('its answer is out of date', tonumber(stale))
end

-- A filter that forgets: the items of a generation are remembered for the next one too.
function rules.config()
  local forget, generation = string.match(redis.call('GET', key), '^%S+ %d+ %d+ %d+ (%d+) (%d+)$')
  if not forget then return end
  for g = generation - 1, generation do
    local bits = beside('bits' .. g % 2)
    if redis.call('EXISTS', bits) == 1 and ends_of(bits) < (g + 2) * forget * 1000 then
      problems[#problems + 1] = bits .. ': expires before its generation is forgotten'
    end
  end
  least('its newest generation is forgotten', (generation + 2) * forget * 1000)
end
function rules.bits0() end
rules.bits1 = rules.bits0

-- A slice of handled items counts until two slices after it.
for hash = 0, 2 do
  rules[tostring(hash)] = function()
    local bucket, own = string.match(key, ':(%d+)}:'), tonumber(redis.call('HGET', key, 's'))
    local shift = math.floor(bucket * slice / buckets)
    least('the slice stops counting', (own + 3) * slice - shift)
    most(3 * slice + 1000)
  end
end

for _, name in ipairs(redis.call('KEYS', 'td:{*')) do
  key, ends = name, tonumber(redis.call('HGET', 'ends', name))
  local rule = rules[string.match(name, '[^:]*$')]
  if not rule then
    problems[#problems + 1] = name .. ': a key that this test does not know'
  elseif not ends then
    problems[#problems + 1] = name .. ': has no ttl'
  else
    rule()
  end
end
return problems
";

impl Time {
    /// Checks all keys. `slices`: the length of a slice of exact claims (µs), and the number of their buckets.
    pub(super) fn check_kept(&mut self, (slice, buckets): (i64, u64)) {
        self.expire();
        let mut check = redis::cmd("EVAL");
        check
            .arg(CHECK)
            .arg(0)
            .arg(self.latest)
            .arg(self.back)
            .arg(slice)
            .arg(buckets);
        let problems: Vec<String> = self.server.query(&check).unwrap();
        assert!(
            problems.is_empty(),
            "at {}:\n{}",
            self.now,
            problems.join("\n")
        );
    }

    /// Checks that the fences in Redis are kept as long as in memory, where each grant and renewal sets the time. A
    /// mutex saves most of these writes, so its fences may expire a day earlier.
    pub(super) fn check_fences<K: Tried>(&mut self, states: &States<K>) {
        let [_, mark, ..] = K::PARTS else { return };
        let day = if mark.starts_with("rw:") {
            0
        } else {
            86_400_000_000
        };
        for (key, state) in &*lock(&states.of) {
            let until = state.holders.fence_until();
            if until - day <= self.now {
                continue;
            }
            let name = format!("td:{{agreement:{}}}:{mark}", key.escape_ascii());
            let ends: Option<i64> = self
                .server
                .query(redis::cmd("HGET").arg("ends").arg(&name))
                .unwrap();
            assert!(
                ends.is_some_and(|ends| ends >= until - day),
                "{name}: {ends:?}, not {until}"
            );
        }
    }
}
