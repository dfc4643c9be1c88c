//! The holders of a key in memory: [`Holder`] for leases with one holder at a time (mutexes, flights and claims), the
//! Rust counterpart of `lua/mutex.lua`, and [`Ends`] for leases that several tokens hold at once.

use hashbrown::{HashMap, HashSet};

use crate::lease::kind::{At, Holders, Kind};
use crate::lease::queue::Queue;
use crate::lease::token::Token;

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

/// The number of fences of one grant. A process uses the next one each time it hands on the lock to one of its waiters.
pub(crate) const FENCES: i64 = 32;

/// The holder and the fence. With `KEPT`, the fence is kept after the release. Otherwise the fence of a holder is the
/// time of its grant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder<const KEPT: bool = true, A = ()> {
    /// The token of the holder, and when its lease ends (µs).
    holder: Option<(Token, i64)>,
    fence: i64,
    /// The time until which the fence is kept, µs.
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

/// Returns the end of a lock with this expiry. Redis counts in whole ms, so the time is rounded up.
fn end(expiry: i64, now: i64) -> i64 {
    now + (expiry - now + 999) / 1000 * 1000
}

impl<const KEPT: bool, A> Holder<KEPT, A> {
    /// Returns the end of the lock as Redis reports it, rounded to ms. 0: the lock is free.
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

/// When the lease of each holder ends (µs), and its weight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    until: EndMap,
    /// The earliest end of a lease, or an earlier time.
    first: i64,
    used: i64,
    /// The grants to waiters that were not renewed yet.
    granted: HashSet<Token>,
    /// The grants that expired without a renewal, and when.
    lapsed: Vec<(Token, i64)>,
}

/// When a lease ends, and its weight.
type End = (i64, i64);

/// A map of which one entry needs no allocation: most keys have one holder at a time.
#[derive(Clone, Debug, Default)]
struct EndMap {
    one: Option<(Token, End)>,
    others: HashMap<Token, End>,
}

impl EndMap {
    fn is_empty(&self) -> bool {
        self.one.is_none() && self.others.is_empty()
    }

    fn clear(&mut self) {
        self.one = None;
        self.others.clear();
    }

    /// Inserts a token that is not in the map.
    fn insert(&mut self, token: Token, end: End) {
        match self.one {
            None => self.one = Some((token, end)),
            Some(_) => drop(self.others.insert(token, end)),
        }
    }

    fn get(&self, token: &Token) -> Option<&End> {
        match &self.one {
            Some((one, end)) if one == token => Some(end),
            _ => self.others.get(token),
        }
    }

    fn get_mut(&mut self, token: &Token) -> Option<&mut End> {
        match &mut self.one {
            Some((one, end)) if one == token => Some(end),
            _ => self.others.get_mut(token),
        }
    }

    fn remove(&mut self, token: &Token) -> Option<End> {
        match self.one {
            Some((ref one, end)) if one == token => {
                self.one = None;
                Some(end)
            }
            _ => self.others.remove(token),
        }
    }

    fn retain(&mut self, mut keeps: impl FnMut(&End) -> bool) {
        self.one.take_if(|(_, end)| !keeps(end));
        self.others.retain(|_, end| keeps(end));
    }

    fn iter(&self) -> impl Iterator<Item = (&Token, &End)> {
        self.one
            .iter()
            .map(|(token, end)| (token, end))
            .chain(&self.others)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (&Token, &mut End)> {
        self.one
            .iter_mut()
            .map(|(token, end)| (&*token, end))
            .chain(&mut self.others)
    }
}

impl Ends {
    pub(crate) fn heap_bytes(&self) -> usize {
        self.until.others.capacity() * size_of::<(Token, End)>()
    }

    pub(crate) fn clear(&mut self) {
        self.until.clear();
        self.granted.clear();
        self.first = 0;
        self.used = 0;
    }

    pub(crate) fn insert(&mut self, token: &Token, expiry: i64, weight: i64) {
        self.first = if self.until.is_empty() {
            expiry
        } else {
            self.first.min(expiry)
        };
        self.used += weight;
        self.until.insert(token.clone(), (expiry, weight));
    }

    pub(crate) fn get(&self, token: &Token) -> Option<i64> {
        self.until.get(token).map(|(expiry, _)| *expiry)
    }

    /// Records that the lease of a token was granted to a waiter.
    pub(crate) fn granted(&mut self, token: &Token) {
        if self.until.get(token).is_some() {
            self.granted.insert(token.clone());
        }
    }

    /// Returns whether the lease was granted to a waiter, and has not been renewed since.
    pub(crate) fn is_granted(&self, token: &Token) -> bool {
        self.granted.contains(token)
    }

    /// Records a renewal.
    pub(crate) fn confirm(&mut self, token: &Token) {
        self.granted.remove(token);
    }

    /// Returns the grants that expired without a renewal since the last call.
    pub(crate) fn lapsed(&mut self) -> Vec<(Token, i64)> {
        std::mem::take(&mut self.lapsed)
    }

    /// Sets the end of a lease. The caller never shortens a lease.
    pub(crate) fn extend(&mut self, token: &Token, expiry: i64) {
        self.confirm(token);
        if let Some((until, _)) = self.until.get_mut(token) {
            *until = expiry;
            self.first = self.first.min(expiry);
        }
    }

    /// Removes a lease. Returns whether there was one.
    pub(crate) fn remove(&mut self, token: &Token) -> bool {
        self.granted.remove(token);
        let Some((_, weight)) = self.until.remove(token) else {
            return false;
        };
        self.used -= weight;
        true
    }

    /// Returns all tokens, in any order.
    pub(crate) fn tokens(&self) -> Vec<Token> {
        self.until.iter().map(|(token, _)| token.clone()).collect()
    }

    /// Returns one of the tokens.
    pub(crate) fn any(&self) -> Option<&Token> {
        self.until.iter().next().map(|(token, _)| token)
    }

    /// Returns the sum of the weights.
    pub(crate) fn used(&self) -> i64 {
        self.used
    }

    /// Removes the leases that have ended.
    pub(crate) fn sweep(&mut self, now: i64) {
        if !self.until.is_empty() && now >= self.first {
            if !self.granted.is_empty() {
                let until = &self.until;
                let ends = |token: &Token| until.get(token).map_or(0, |(expiry, _)| *expiry);
                let expired = self.granted.extract_if(|token| ends(token) <= now);
                self.lapsed.extend(
                    expired
                        .map(|token| (ends(&token), token))
                        .map(|(expiry, token)| (token, expiry)),
                );
            }
            self.until.retain(|(expiry, _)| *expiry > now);
            self.used = self.until.iter().map(|(_, (_, weight))| weight).sum();
            self.find_first();
        }
    }

    fn find_first(&mut self) {
        self.first = self
            .until
            .iter()
            .map(|(_, (expiry, _))| *expiry)
            .min()
            .unwrap_or(0);
    }

    /// Implements [`Holders::soonest`].
    pub(crate) fn soonest(&mut self, now: i64) -> i64 {
        let longest = |token: &Token| token.ttl().map_or(i64::MAX, |ttl| now + ttl);
        let granted = &self.granted;
        // In Redis, the expiry of a grant is half a µs higher.
        let by_end = |(token, (expiry, _)): &(&Token, &(i64, i64))| {
            (*expiry, granted.contains(*token), (*token).clone())
        };
        let ends = [
            self.until.iter().min_by_key(by_end),
            self.until.iter().max_by_key(by_end),
        ];
        if ends
            .into_iter()
            .flatten()
            .any(|(token, (expiry, _))| *expiry > longest(token))
        {
            let granted = &mut self.granted;
            self.until.iter_mut().for_each(|(token, (expiry, _))| {
                if *expiry > longest(token) {
                    *expiry = longest(token);
                    granted.remove(token);
                }
            });
        }
        self.find_first();
        self.first
    }

    pub(crate) fn have_ended(&self, now: i64) -> bool {
        self.until.is_empty()
            || now >= self.first && self.until.iter().all(|(_, (expiry, _))| *expiry <= now)
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

    /// Fences rise even while the clock stands still, as long as the last one is kept.
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
        // The fence is forgotten once its time is over, or once every later one is higher.
        let kept = NOW + 8 * DAY;
        assert_eq!(
            [fence + FENCES - 1, fence + FENCES].map(|now| holder.is_idle(now)),
            [false, true]
        );
        holder.sweep(kept - 1);
        assert_eq!(hold(&mut holder.clone(), "d", 1000, NOW), fence + FENCES);
        holder.sweep(kept);
        assert_eq!(hold(&mut holder, "d", 1000, NOW), NOW);
        // Without kept fences, the fence is the time.
        let mut holder = Holder::<false>::default();
        assert_eq!(
            [(); 2].map(|()| hold(&mut holder, "a", 1000, NOW)),
            [NOW; 2]
        );
        holder.forget(&token("a"));
        assert!(holder.is_idle(NOW));
    }
}
