//! Who holds a mutex, in process: the twin of `lua/lib/mutex.lua`.

use std::sync::Arc;

use crate::primitive::lease::kind::{Holders, Kind, Scripts, scripts};
use crate::primitive::lease::queue::Queue;
use crate::store::ttl_of;

/// One at a time.
#[derive(Clone, Debug)]
pub(crate) enum Exclusive {}

impl Kind for Exclusive {
    type Holders = Holder;
    type Outcome = ();
    const PARTS: &'static [&'static str] = &["lock", "fence", "queue", "beats"];
    const SCRIPTS: Scripts = scripts!("lib/mutex");
}

/// What a token adds whose lock holds a value of the user's.
pub(super) fn suffix(value: &str) -> String {
    format!(":{value}")
}

/// Each grant has so many fences: a process hands a lock on within itself, each time with the next.
pub(crate) const FENCES: i64 = 32;

/// Who holds; with fences that outlive their holders, or are the times of the grants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder<const KEPT: bool = true, A = ()> {
    /// By its token, whatever value is in that; until when.
    holder: Option<(Arc<str>, i64)>,
    fence: i64,
    /// What came of the leases before.
    pub(crate) outcome: A,
}

/// What is kept beside a lock.
pub(crate) trait Kept: Clone + std::fmt::Debug + Default + Send + 'static {
    /// Whether forgetting it changes nothing.
    fn is_idle(&self, now: i64) -> bool;
}

impl Kept for () {
    fn is_idle(&self, _: i64) -> bool {
        true
    }
}

/// When a lock ends that is set until `expiry`: Redis counts in whole ms.
fn end(expiry: i64, now: i64) -> i64 {
    now + (expiry - now + 999) / 1000 * 1000
}

impl<const KEPT: bool, A> Holder<KEPT, A> {
    /// When the lock ends, as Redis tells it; 0: nobody holds it.
    fn ends(&self, now: i64) -> i64 {
        self.holder.as_ref().map_or(0, |(_, expiry)| now + ((expiry - now) / 1000).max(1) * 1000)
    }
}

impl<const KEPT: bool, A: Kept> Holders for Holder<KEPT, A> {
    fn sweep(&mut self, now: i64) {
        self.holder.take_if(|(_, expiry)| *expiry <= now);
    }

    fn used(&self) -> i64 {
        self.holder.is_some().into()
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
        self.fence
    }

    fn extend(&mut self, _: &str, expiry: i64, now: i64) {
        if let Some((_, until)) = &mut self.holder {
            *until = end(expiry, now);
        }
    }

    fn forget(&mut self, _: &str) {
        self.holder = None;
    }

    fn raise(&mut self, fence: i64) {
        self.fence = self.fence.max(fence);
    }

    fn soonest(&mut self, now: i64) -> i64 {
        let left = self.ends(now) - now;
        if let Some((holder, expiry)) = &mut self.holder
            // In Redis, what holds a value does not tell its time to live.
            && let Some(ttl) = ttl_of(holder).filter(|_| !holder.contains(':'))
            && left > end(ttl, 0)
        {
            *expiry = end(now + ttl, now);
        }
        self.ends(now)
    }

    fn head(&self, queue: &Queue, _: &mut bool) -> Option<Arc<str>> {
        queue.first().cloned()
    }

    fn is_idle(&self, now: i64) -> bool {
        let is_free = self.holder.as_ref().is_none_or(|(_, expiry)| *expiry <= now);
        is_free && (!KEPT || self.fence + FENCES <= now) && self.outcome.is_idle(now)
    }
}
