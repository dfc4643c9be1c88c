//! The kind of lease with one holder at a time, and its holder in the in-memory store. Mutexes use it, and so do flights and
//! claims. It does the same as `lua/mutex.lua`.

use super::kind::{At, Holders, Kind};
use super::queue::Queue;
use super::token::Token;

/// The kind of lease that has one holder at a time.
#[derive(Clone, Debug)]
pub(crate) enum Exclusive {}

impl Kind for Exclusive {
    type Holders = Holder;
    type Outcome = ();
    const PARTS: &'static [&'static str] = &["lock", "fence", "waiters", "beats"];
    const NAME: &'static str = "mutex";
    const PIECES: &'static [&'static str] = &["mutex"];
}

/// The number of fences of one grant. A process uses the next one each time it hands the lock over within itself.
pub(crate) const FENCES: i64 = 32;

/// The holder and the fence. With `KEPT`, the fence is kept after the release. Otherwise the fence of a holder is
/// the time of its grant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder<const KEPT: bool = true, A = ()> {
    /// The whole token of the holder, and when its lease ends (µs).
    holder: Option<(Token, i64)>,
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

    /// See [`Cell::heap_bytes`](crate::store::Cell::heap_bytes).
    fn heap_bytes(&self) -> usize {
        0
    }
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
        self.holder
            .as_ref()
            .map_or(0, |(_, expiry)| now + ((expiry - now) / 1000).max(1) * 1000)
    }
}

impl<const KEPT: bool, A: Kept> Holders for Holder<KEPT, A> {
    fn heap_bytes(&self) -> usize {
        self.outcome.heap_bytes()
    }

    fn sweep(&mut self, now: i64) {
        self.holder.take_if(|(_, expiry)| *expiry <= now);
        if self.fence_until <= now {
            self.fence = 0;
        }
    }

    fn used(&self) -> i64 {
        self.holder.is_some().into()
    }

    fn tokens(&self) -> Vec<Token> {
        self.holder.iter().map(|(token, _)| token.clone()).collect()
    }

    fn held(&self, token: &Token, now: i64) -> Option<(i64, i64)> {
        let (holder, _) = self.holder.as_ref()?;
        (holder == token).then(|| (self.ends(now), if KEPT { self.fence } else { now }))
    }

    fn fits(&self, _: &Token, _: At<'_>) -> bool {
        self.holder.is_none()
    }

    fn is_full(&self) -> bool {
        self.holder.is_some()
    }

    fn hold(&mut self, token: &Token, expiry: i64, now: i64, _: &Queue) -> i64 {
        self.holder = Some((token.clone(), end(expiry, now)));
        self.fence = now.max(if KEPT { self.fence + FENCES } else { 0 });
        self.fence_until = token.kept_until(expiry, now);
        self.fence
    }

    fn extend(&mut self, token: &Token, expiry: i64, now: i64) {
        self.fence_until = token.kept_until(expiry, now);
        if let Some((_, until)) = &mut self.holder {
            *until = end(expiry, now);
        }
    }

    fn forget(&mut self, token: &Token) -> bool {
        self.holder.take_if(|(holder, _)| holder == token).is_some()
    }

    fn raise(&mut self, fence: i64, now: i64) {
        if fence > self.fence
            && let Some((token, _)) = &self.holder
        {
            self.fence = fence;
            self.fence_until = token.kept_until(self.ends(now), now);
        }
    }

    fn soonest(&mut self, now: i64) -> i64 {
        let left = self.ends(now) - now;
        if let Some((holder, expiry)) = &mut self.holder
            // In Redis, a lock with a value of the user does not contain its ttl.
            && let Some(ttl) = holder.ttl().filter(|_| !holder.has_value())
            && left > end(ttl, 0)
        {
            *expiry = end(now + ttl, now);
        }
        self.ends(now)
    }

    fn head(&self, queue: &mut Queue, _: &mut bool, now: i64) -> Option<Token> {
        queue.first(now)
    }

    #[cfg(test)]
    fn fence_until(&self) -> i64 {
        if KEPT && self.fence > 0 {
            self.fence_until
        } else {
            0
        }
    }

    fn is_idle(&self, now: i64) -> bool {
        let is_free = self
            .holder
            .as_ref()
            .is_none_or(|(_, expiry)| *expiry <= now);
        is_free
            && (!KEPT || self.fence + FENCES <= now || self.fence_until <= now)
            && self.outcome.is_idle(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000_000;
    const NOW: i64 = 1000 * DAY;

    fn token(text: &str) -> Token {
        text.into()
    }

    fn hold<const KEPT: bool>(holder: &mut Holder<KEPT>, name: &str, span: i64, now: i64) -> i64 {
        holder.hold(&token(name), now + span, now, &Queue::default())
    }

    /// Fences rise also where the clock stands still, as long as the last one is kept.
    #[test]
    fn fences_rise() {
        let mut holder = Holder::<true>::default();
        assert_eq!(hold(&mut holder, "a", 1000, NOW), NOW);
        assert_eq!(hold(&mut holder, "b", 1000, NOW), NOW + FENCES);
        assert_eq!(
            hold(&mut holder, "c", 1000, NOW + 2 * FENCES + 1),
            NOW + 2 * FENCES + 1
        );
        let fence = NOW + DAY;
        for (fence, after) in [(fence, 0), (fence - 1, 1), (fence, 2)] {
            holder.raise(fence, NOW + after);
        }
        assert_eq!(
            holder.held(&token("c"), NOW).map(|(_, fence)| fence),
            Some(fence)
        );
        holder.forget(&token("c"));
        holder.raise(fence + DAY, NOW);
        // It is forgotten once it is kept no longer, or once it is lower than any later one.
        let kept = NOW + 8 * DAY;
        assert_eq!(
            [fence + FENCES - 1, fence + FENCES].map(|now| holder.is_idle(now)),
            [false, true]
        );
        holder.sweep(kept - 1);
        assert_eq!(hold(&mut holder.clone(), "d", 1000, NOW), fence + FENCES);
        holder.sweep(kept);
        assert_eq!(hold(&mut holder, "d", 1000, NOW), NOW);
        // That of a holder without kept fences is the time.
        let mut holder = Holder::<false>::default();
        assert_eq!(
            [(); 2].map(|()| hold(&mut holder, "a", 1000, NOW)),
            [NOW; 2]
        );
        holder.forget(&token("a"));
        assert!(holder.is_idle(NOW));
    }
}
