//! The kind of lease with one holder at a time, and its holder in the in-memory store. Mutexes use it, and so do flights and
//! claims. It does the same as `lua/lib/mutex.lua`.

use std::sync::Arc;

use super::kind::{Holders, Kind, Scripts, scripts};
use super::queue::Queue;
use super::token::{kept_until, ttl_of};

/// The kind of lease that has one holder at a time.
#[derive(Clone, Debug)]
pub(crate) enum Exclusive {}

impl Kind for Exclusive {
    type Holders = Holder;
    type Outcome = ();
    const PARTS: &'static [&'static str] = &["lock", "fence", "waiters", "beats"];
    const SCRIPTS: Scripts = scripts!("lib/quick_mutex"; "lib/mutex");
}

/// The number of fences of one grant. A process uses the next one each time it hands the lock over within itself.
pub(crate) const FENCES: i64 = 32;

/// The holder and the fence. With `KEPT`, the fence is kept after the release. Otherwise the fence of a holder is
/// the time of its grant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder<const KEPT: bool = true, A = ()> {
    /// The whole token of the holder, and when its lease ends (µs).
    holder: Option<(Arc<str>, i64)>,
    fence: i64,
    /// Until when the fence is kept, µs.
    fence_until: i64,
    /// The outcome of earlier leases.
    pub(crate) outcome: A,
}

/// State that is kept beside a lock.
pub(crate) trait Kept: Clone + std::fmt::Debug + Default + Send + 'static {
    /// Whether the state can be dropped without any effect.
    fn is_idle(&self, now: i64) -> bool;
}

impl Kept for () {
    fn is_idle(&self, _: i64) -> bool {
        true
    }
}

/// When a lock with this expiry ends. Redis counts in whole ms, so the time is rounded up.
fn end(expiry: i64, now: i64) -> i64 {
    now + (expiry - now + 999) / 1000 * 1000
}

impl<const KEPT: bool, A> Holder<KEPT, A> {
    /// When the lock ends, as Redis reports it, rounded to ms. 0: the lock is free.
    fn ends(&self, now: i64) -> i64 {
        self.holder.as_ref().map_or(0, |(_, expiry)| now + ((expiry - now) / 1000).max(1) * 1000)
    }
}

impl<const KEPT: bool, A: Kept> Holders for Holder<KEPT, A> {
    fn sweep(&mut self, now: i64) {
        self.holder.take_if(|(_, expiry)| *expiry <= now);
        if self.fence_until <= now {
            self.fence = 0;
        }
    }

    fn used(&self) -> i64 {
        self.holder.is_some().into()
    }

    fn tokens(&self) -> Vec<Arc<str>> {
        self.holder.iter().map(|(token, _)| Arc::clone(token)).collect()
    }

    fn held(&self, token: &str, now: i64) -> Option<(i64, i64)> {
        let (holder, _) = self.holder.as_ref()?;
        (**holder == *token).then(|| (self.ends(now), if KEPT { self.fence } else { now }))
    }

    fn fits(&self, _: &str) -> bool {
        self.holder.is_none()
    }

    fn is_full(&self) -> bool {
        self.holder.is_some()
    }

    fn hold(&mut self, token: &Arc<str>, expiry: i64, now: i64, _: &Queue) -> i64 {
        self.holder = Some((Arc::clone(token), end(expiry, now)));
        self.fence = now.max(if KEPT { self.fence + FENCES } else { 0 });
        self.fence_until = kept_until(token, expiry, now);
        self.fence
    }

    fn extend(&mut self, token: &str, expiry: i64, now: i64) {
        self.fence_until = kept_until(token, expiry, now);
        if let Some((_, until)) = &mut self.holder {
            *until = end(expiry, now);
        }
    }

    fn forget(&mut self, _: &str) {
        self.holder = None;
    }

    fn raise(&mut self, fence: i64, now: i64) {
        if fence > self.fence
            && let Some((token, _)) = &self.holder
        {
            self.fence = fence;
            self.fence_until = kept_until(token, self.ends(now), now);
        }
    }

    fn soonest(&mut self, now: i64) -> i64 {
        let left = self.ends(now) - now;
        if let Some((holder, expiry)) = &mut self.holder
            // In Redis, a lock with a value of the user does not contain its ttl.
            && let Some(ttl) = ttl_of(holder).filter(|_| !holder.contains(':'))
            && left > end(ttl, 0)
        {
            *expiry = end(now + ttl, now);
        }
        self.ends(now)
    }

    fn head(&self, queue: &Queue, _: &mut bool, now: i64) -> Option<Arc<str>> {
        queue.first(now).cloned()
    }

    #[cfg(test)]
    fn fence_until(&self) -> i64 {
        if KEPT && self.fence > 0 { self.fence_until } else { 0 }
    }

    fn is_idle(&self, now: i64) -> bool {
        let is_free = self.holder.as_ref().is_none_or(|(_, expiry)| *expiry <= now);
        is_free
            && (!KEPT || self.fence + FENCES <= now || self.fence_until <= now)
            && self.outcome.is_idle(now)
    }
}
