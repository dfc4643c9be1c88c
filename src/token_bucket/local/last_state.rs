//! The latest state that the server returned. All threads read it without a lock.
//!
//! A read during a write may mix two states. Each number of either state is still a valid bound: levels only rise,
//! unless tokens are given back, and every time stamp bounds the server's clock. Only the tokens used in a window of the
//! calendar become fewer, in the next window: whoever reads that window reads its tokens, or later ones.

use smallvec::SmallVec;

use crate::sync::atomic::{AtomicI64, Ordering};
use crate::token_bucket::bucket_state::BucketState;
use crate::token_bucket::quota::Quotas;
use crate::token_bucket::state::{Bucket, Level, Moment};

pub(super) struct LastState {
    /// The server's clock minus this process's clock, at most.
    offset: AtomicI64,
    /// When the request was sent, by this process's clock.
    sent: AtomicI64,
    /// When the server answered, by the server's clock.
    answered: AtomicI64,
    blocked_until: AtomicI64,
    /// The TAT of each quota: whole and part; or its used tokens, and the window of a calendar quota.
    levels: SmallVec<[[AtomicI64; 2]; 1]>,
}

impl LastState {
    pub(super) fn new(quotas: &Quotas) -> Self {
        let level = |_| [AtomicI64::new(0), AtomicI64::new(0)];
        Self {
            offset: AtomicI64::new(0),
            sent: AtomicI64::new(i64::MIN),
            answered: AtomicI64::new(i64::MIN),
            blocked_until: AtomicI64::new(0),
            levels: quotas.limits().iter().map(level).collect(),
        }
    }

    /// Stores the answer to a request sent at `sent`. The server answered after that, so the difference of the
    /// clocks was at most the difference stored here.
    ///
    /// Only one thread calls this at a time. Returns whether the answer was stored: answers to requests sent before the
    /// stored one are ignored. (Their order by the server's clock is not reliable, because that clock may be set back.)
    pub(super) fn learn(&self, sent: i64, state: &BucketState) -> bool {
        if sent < self.sent.fetch_max(sent, Ordering::Relaxed) {
            return false;
        }
        self.answered.store(state.now, Ordering::Relaxed);
        self.offset.store(state.now - sent, Ordering::Relaxed);
        self.blocked_until
            .store(state.bucket.blocked_until, Ordering::Relaxed);
        for (stored, level) in self.levels.iter().zip(&state.bucket.levels) {
            // A reader of a level also sees what the caller did before, such as to count a request no longer as in flight.
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

    /// The time by the server's clock, at most.
    #[inline]
    pub(super) fn time(&self, now: i64) -> i64 {
        (now + self.offset.load(Ordering::Relaxed)).max(self.answered.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn is_blocked(&self, now: i64) -> bool {
        self.blocked_until.load(Ordering::Relaxed) > self.time(now)
    }

    #[inline]
    pub(super) fn bucket(&self, quotas: &Quotas) -> Bucket {
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
