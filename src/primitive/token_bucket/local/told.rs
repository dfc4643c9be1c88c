//! The state that the server told last, which all threads read without a lock.
//!
//! What is read while it is written may be of two states. Each number of either is a bound that holds: levels only rise but
//! for what is given back, and any time stamp bounds the server's clock.

use std::sync::atomic::{AtomicI64, Ordering};

use smallvec::SmallVec;

use crate::primitive::quota::Quotas;
use crate::primitive::token_bucket::decision::BucketState;
use crate::primitive::token_bucket::state::{Bucket, Level, Moment};

pub(super) struct Told {
    /// The server's clock, less this process's, at most.
    offset: AtomicI64,
    /// When it was asked for, by this process's clock.
    sent: AtomicI64,
    /// When it was told, by the server's clock.
    told: AtomicI64,
    blocked_until: AtomicI64,
    /// TATs by quota: whole and part.
    levels: SmallVec<[[AtomicI64; 2]; 1]>,
}

impl Told {
    pub(super) fn new(quotas: &Quotas) -> Self {
        let level = |_| [AtomicI64::new(0), AtomicI64::new(0)];
        Self {
            offset: AtomicI64::new(0),
            sent: AtomicI64::new(i64::MIN),
            told: AtomicI64::new(i64::MIN),
            blocked_until: AtomicI64::new(0),
            levels: quotas.limits().iter().map(level).collect(),
        }
    }

    /// The answer to what was sent at `sent`: the server answered it later, so its clock was then no further from this one
    /// than that.
    ///
    /// Whether it was learned: what was sent earlier than what is known is not. (The server's clock may have been set back.)
    pub(super) fn learn(&self, sent: i64, state: &BucketState) -> bool {
        if sent < self.sent.fetch_max(sent, Ordering::Relaxed) {
            return false;
        }
        self.told.store(state.now, Ordering::Relaxed);
        self.offset.store(state.now - sent, Ordering::Relaxed);
        self.blocked_until.store(state.bucket.blocked_until, Ordering::Relaxed);
        for (told, level) in self.levels.iter().zip(&state.bucket.levels) {
            told[0].store(level.tat.whole, Ordering::Relaxed);
            told[1].store(level.tat.part, Ordering::Relaxed);
        }
        true
    }

    /// The time by the server's clock, at most.
    #[inline]
    pub(super) fn time(&self, now: i64) -> i64 {
        (now + self.offset.load(Ordering::Relaxed)).max(self.told.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn is_blocked(&self, now: i64) -> bool {
        self.blocked_until.load(Ordering::Relaxed) > self.time(now)
    }

    #[inline]
    pub(super) fn bucket(&self, quotas: &Quotas) -> Bucket {
        let blocked_until = self.blocked_until.load(Ordering::Relaxed);
        let mut levels = SmallVec::new();
        for (told, limit) in self.levels.iter().zip(quotas.limits()) {
            let whole = told[0].load(Ordering::Relaxed);
            levels.push(match limit.num {
                0 => Level { tat: Moment::used(whole), quota: limit.tokens, ..Level::default() },
                _ => {
                    let tat = Moment { whole, part: told[1].load(Ordering::Relaxed) };
                    Level { tat, last: tat, quota: limit.tokens, ..Level::default() }
                }
            });
        }
        Bucket { blocked_until, levels }
    }
}
