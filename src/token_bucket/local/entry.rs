//! The local state of one key under one set of quotas: the latest state that the server returned, and prefetched
//! tokens. All threads read it without a lock.

use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::bucket::Bucket;
use crate::bucket::decision::BucketState;
use crate::bucket::level::{Level, Moment};
use crate::bucket::quotas::Quotas;
use crate::key::Key;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::sync::{Mutex, Padded};

pub(crate) struct Entry {
    /// The id of the table that contains this entry.
    pub(crate) table: u64,
    pub(crate) hash: u64,
    pub(crate) key: Key,
    pub(crate) quotas: Quotas,
    pub(crate) last_state: LastState,
    /// Locked while a state is stored or removed.
    pub(crate) learning: Mutex<()>,
    /// Whether the entry was removed from the table.
    is_gone: AtomicBool,
    /// Until when (µs) the stored state bounds the requests to the store; 0: it does not.
    pub(crate) known_until: AtomicI64,
    /// The tokens of requests to the store that have no reply yet.
    pub(crate) in_flight: AtomicI64,
    /// The prefetched tokens.
    pub(crate) slots: Padded<Slots>,
    /// The size of the last prefetch.
    pub(crate) batch: AtomicI64,
    /// Whether a [`PrefetchTask`](crate::token_bucket::local::PrefetchTask) runs for this entry.
    pub(crate) has_prefetch_task: AtomicBool,
    /// Until when (µs) no task starts, after a prefetch that got no tokens.
    pub(crate) no_prefetch_until: AtomicI64,
    /// Whether more tokens are requested from the task.
    pub(crate) wants: AtomicBool,
    pub(crate) more: Notify,
    /// The tokens requested from the store since the last prefetch.
    pub(crate) missed: AtomicI64,
}

impl Entry {
    pub(crate) fn new(table: u64, hash: u64, key: &Key, quotas: &Quotas) -> Self {
        Self {
            table,
            hash,
            key: key.clone(),
            quotas: quotas.clone(),
            last_state: LastState::new(quotas),
            learning: Mutex::default(),
            is_gone: AtomicBool::new(false),
            known_until: AtomicI64::new(0),
            in_flight: AtomicI64::new(0),
            slots: Padded::default(),
            batch: AtomicI64::new(0),
            has_prefetch_task: AtomicBool::new(false),
            no_prefetch_until: AtomicI64::new(0),
            wants: AtomicBool::new(false),
            more: Notify::new(),
            missed: AtomicI64::new(0),
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Marks the entry as removed if `ends` returns `true`. Returns that result.
    pub(crate) fn ends_if(&self, ends: impl FnOnce(&Self) -> bool) -> bool {
        let ends = ends(self);
        if ends {
            self.is_gone.store(true, Ordering::Release);
        }
        ends
    }

    pub(crate) fn is_of(&self, key: &Key, quotas: &Quotas) -> bool {
        self.quotas.id() == quotas.id() && self.key == *key
    }

    /// Whether the entry is unused.
    pub(crate) fn is_idle(&self, now: i64) -> bool {
        self.known_until.load(Ordering::Relaxed) <= now
            && self.in_flight.load(Ordering::Relaxed) == 0
            && !self.has_prefetch_task.load(Ordering::Relaxed)
    }

    /// Takes prefetched tokens; see [`Slots::take`].
    pub(crate) fn take(&self, now: i64, cost: i64, share: u32) -> Option<Taken> {
        let taken = self.slots.0.take(now, cost, share)?;
        if taken.left * 4 <= self.batch.load(Ordering::Relaxed)
            && self.slots.0.left(1 - taken.slot) == 0
        {
            self.want_more();
        }
        Some(taken)
    }

    fn want_more(&self) {
        if !self.wants.load(Ordering::Relaxed) && !self.wants.swap(true, Ordering::Relaxed) {
            self.more.notify_one();
        }
    }

    /// Counts tokens that are requested from the store.
    pub(crate) fn missed(&self, tokens: i64) {
        if self.has_prefetch_task.load(Ordering::Relaxed) {
            self.missed.fetch_add(tokens, Ordering::Relaxed);
            self.want_more();
        }
    }

    /// Drops the prefetched tokens.
    pub(crate) fn drop_tokens(&self) {
        self.slots.0.empty(0);
        self.slots.0.empty(1);
    }
}

pub(crate) struct LastState {
    /// The maximum of the server's clock minus this process's clock.
    offset: AtomicI64,
    /// When the request was sent, by this process's clock.
    sent: AtomicI64,
    /// When the server replied, by the server's clock.
    answered: AtomicI64,
    blocked_until: AtomicI64,
    /// For each quota, the whole and the part of the TAT; or the used tokens and the window of a calendar quota.
    levels: SmallVec<[[AtomicI64; 2]; 1]>,
}

impl LastState {
    pub(crate) fn new(quotas: &Quotas) -> Self {
        let level = |_| [AtomicI64::new(0), AtomicI64::new(0)];
        Self {
            offset: AtomicI64::new(0),
            sent: AtomicI64::new(i64::MIN),
            answered: AtomicI64::new(i64::MIN),
            blocked_until: AtomicI64::new(0),
            levels: quotas.limits().iter().map(level).collect(),
        }
    }

    /// Stores the reply to a request sent at `sent`. The server replied after that, so the difference of the clocks was
    /// at most the difference stored here.
    ///
    /// Only one thread calls this at a time. Returns whether the reply was stored: replies to requests sent before the
    /// stored one are ignored. (Their order by the server's clock is not reliable, because that clock may be set back.)
    pub(crate) fn learn(&self, sent: i64, state: &BucketState) -> bool {
        if sent < self.sent.fetch_max(sent, Ordering::Relaxed) {
            return false;
        }
        self.answered.store(state.now, Ordering::Relaxed);
        self.offset.store(state.now - sent, Ordering::Relaxed);
        self.blocked_until
            .store(state.bucket.blocked_until, Ordering::Relaxed);
        for (stored, level) in self.levels.iter().zip(&state.bucket.levels) {
            // A thread that reads a level also sees earlier writes of the caller, such as ending a request in flight.
            stored[0].store(level.tat.whole, Ordering::Release);
            let counts_used = level.quota.num == 0;
            let part = if counts_used {
                level.last.whole
            } else {
                level.tat.part
            };
            stored[1].store(part, Ordering::Release);
        }
        true
    }

    /// The maximum of the time by the server's clock.
    #[inline]
    pub(crate) fn time(&self, now: i64) -> i64 {
        (now + self.offset.load(Ordering::Relaxed)).max(self.answered.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is_blocked(&self, now: i64) -> bool {
        self.blocked_until.load(Ordering::Relaxed) > self.time(now)
    }

    #[inline]
    pub(crate) fn bucket(&self, quotas: &Quotas) -> Bucket {
        let blocked_until = self.blocked_until.load(Ordering::Relaxed);
        let mut levels = SmallVec::new();
        for (stored, limit) in self.levels.iter().zip(quotas.limits()) {
            let part = stored[1].load(Ordering::Acquire);
            let whole = stored[0].load(Ordering::Acquire);
            let tat = if limit.num == 0 {
                Moment::used(whole)
            } else {
                Moment { whole, part }
            };
            let last = if limit.num == 0 {
                Moment {
                    whole: part,
                    part: 0,
                }
            } else {
                tat
            };
            levels.push(Level {
                tat,
                last,
                quota: limit.tokens,
                ..Level::default()
            });
        }
        Bucket::new(blocked_until, levels)
    }
}

/// A batch is one number: the number of tokens in the low bits, and above them the deadline in units of 256 µs, for
/// 142 years from the start of the host.
const COUNT_BITS: u32 = 20;

const COUNT: u64 = (1 << COUNT_BITS) - 1;

const TICK_BITS: u32 = 8;

/// The maximum number of tokens of a batch.
pub(crate) const MOST: i64 = COUNT as i64;

#[derive(Default)]
pub(crate) struct Slots([AtomicU64; 2]);

pub(crate) const SLOTS: usize = 2;

/// Tokens taken from a batch.
pub(crate) struct Taken {
    pub(crate) slot: usize,
    pub(crate) count: i64,
    /// The number of tokens left in the batch.
    pub(crate) left: i64,
    /// The tokens may be used before this time, µs.
    pub(crate) deadline: i64,
}

impl Slots {
    /// Puts a batch into an empty slot. Its tokens may be used before `deadline` (µs).
    pub(crate) fn put(&self, slot: usize, count: i64, deadline: i64) {
        let ticks = deadline.max(0).unsigned_abs() >> TICK_BITS;
        let count = count.clamp(0, MOST).unsigned_abs();
        self.0[slot].store(ticks << COUNT_BITS | count, Ordering::Release);
    }

    /// Takes tokens from the batch with the earliest deadline that has at least `cost` tokens: the `2^share`-th
    /// part of the batch, or `cost` if that is more. The deadline and the number of tokens are one atomic number,
    /// so nothing is taken from a replaced batch.
    pub(crate) fn take(&self, now: i64, cost: i64, share: u32) -> Option<Taken> {
        let tick = now.max(0).unsigned_abs() >> TICK_BITS;
        let cost = cost.unsigned_abs();
        let mut values = [
            self.0[0].load(Ordering::Acquire),
            self.0[1].load(Ordering::Acquire),
        ];
        let usable = |value: u64| value >> COUNT_BITS > tick && value & COUNT >= cost;
        let order = if values[1] >> COUNT_BITS < values[0] >> COUNT_BITS {
            [1, 0]
        } else {
            [0, 1]
        };
        for slot in order {
            while usable(values[slot]) {
                let old = values[slot];
                let count = cost.max((old & COUNT) >> share);
                let new = old - count;
                match self.0[slot].compare_exchange_weak(
                    old,
                    new,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => {
                        let deadline = ((new >> COUNT_BITS) << TICK_BITS) as i64;
                        return Some(Taken {
                            slot,
                            count: count as i64,
                            left: (new & COUNT) as i64,
                            deadline,
                        });
                    }
                    Err(current) => values[slot] = current,
                }
            }
        }
        None
    }

    /// The number of tokens of a batch, expired or not.
    pub(crate) fn left(&self, slot: usize) -> i64 {
        (self.0[slot].load(Ordering::Acquire) & COUNT) as i64
    }

    /// Takes all tokens of a batch.
    pub(crate) fn empty(&self, slot: usize) -> i64 {
        (self.0[slot].swap(0, Ordering::AcqRel) & COUNT) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batch_that_ends_first_is_used_first() {
        let slots = Slots::default();
        slots.put(0, 3, 2_000);
        slots.put(1, 3, 1_000);
        let take = |now, cost| {
            slots
                .take(now, cost, 6)
                .map(|taken| (taken.slot, taken.left))
        };
        assert_eq!(take(0, 2), Some((1, 1)));
        assert_eq!(take(0, 2), Some((0, 1)), "none is split");
        assert_eq!(take(0, 2), None);
        assert_eq!(take(1_000, 1), Some((0, 0)), "the other has ended");
        assert_eq!((slots.left(0), slots.empty(1), slots.left(1)), (0, 1, 0));
        slots.put(0, 1, 2_000);
        slots.put(1, 1, 3_000);
        assert_eq!(
            (take(0, 1), take(0, 1), take(0, 1)),
            (Some((0, 0)), Some((1, 0)), None)
        );
        slots.put(0, 1, 2_010);
        assert!(
            slots.take(2_000, 1, 6).is_none(),
            "a tick too soon rather than too late"
        );
        assert!(
            slots
                .take(1_791, 1, 6)
                .is_some_and(|taken| (taken.deadline, taken.count) == (1_792, 1))
        );
        slots.put(0, 640, 2_000);
        assert!(
            slots
                .take(0, 1, 6)
                .is_some_and(|taken| (taken.count, taken.left) == (10, 630))
        );
        let century = 100 * 365 * 86_400 * 1_000_000;
        slots.put(0, 1, century + 2_000);
        assert!(
            slots
                .take(century, 1, 6)
                .is_some_and(|taken| taken.deadline > century)
        );
    }
}
