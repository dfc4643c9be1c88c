//! The holders of a key that several tokens can hold at once, and when their leases end.

use std::sync::Arc;

use hashbrown::HashMap;

use super::token::ttl_of;

/// When the lease of each holder ends (µs), and its weight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    until: HashMap<Arc<str>, (i64, i64)>,
    /// No lease ends before.
    first: i64,
    used: i64,
}

impl Ends {
    pub(crate) fn clear(&mut self) {
        self.until.clear();
        (self.first, self.used) = (0, 0);
    }

    pub(crate) fn insert(&mut self, token: &Arc<str>, expiry: i64, weight: i64) {
        self.first = if self.until.is_empty() { expiry } else { self.first.min(expiry) };
        self.used += weight;
        self.until.insert(Arc::clone(token), (expiry, weight));
    }

    pub(crate) fn get(&self, token: &str) -> Option<i64> {
        self.until.get(token).map(|(expiry, _)| *expiry)
    }

    /// Sets the end of a lease. Leases never get shorter here.
    pub(crate) fn extend(&mut self, token: &str, expiry: i64) {
        if let Some((until, _)) = self.until.get_mut(token) {
            *until = expiry;
            self.first = self.first.min(expiry);
        }
    }

    pub(crate) fn remove(&mut self, token: &str) {
        self.used -= self.until.remove(token).map_or(0, |(_, weight)| weight);
    }

    /// Returns all tokens, in order.
    pub(crate) fn tokens(&self) -> Vec<Arc<str>> {
        let mut tokens: Vec<_> = self.until.keys().cloned().collect();
        tokens.sort_unstable();
        tokens
    }

    /// Returns one of the tokens.
    pub(crate) fn any(&self) -> Option<&Arc<str>> {
        self.until.keys().next()
    }

    /// Returns the sum of the weights.
    pub(crate) fn used(&self) -> i64 {
        self.used
    }

    /// Removes the leases that have ended.
    pub(crate) fn sweep(&mut self, now: i64) {
        if now >= self.first {
            self.until.retain(|_, (expiry, _)| *expiry > now);
            self.used = self.until.values().map(|(_, weight)| weight).sum();
            self.find_first();
        }
    }

    fn find_first(&mut self) {
        self.first = self.until.values().map(|(expiry, _)| *expiry).min().unwrap_or(0);
    }

    /// Implements [`Holders::soonest`](super::kind::Holders::soonest).
    pub(crate) fn soonest(&mut self, now: i64) -> i64 {
        let longest = |token: &str| ttl_of(token).map_or(i64::MAX, |ttl| now + ttl);
        let by_end = |(token, (expiry, _)): &(&Arc<str>, &(i64, i64))| (*expiry, Arc::clone(token));
        let ends = [self.until.iter().min_by_key(by_end), self.until.iter().max_by_key(by_end)];
        if ends.into_iter().flatten().any(|(token, (expiry, _))| *expiry > longest(token)) {
            self.until.iter_mut().for_each(|(token, (expiry, _))| *expiry = (*expiry).min(longest(token)));
        }
        self.find_first();
        self.first
    }

    pub(crate) fn have_ended(&self, now: i64) -> bool {
        now >= self.first && self.until.values().all(|(expiry, _)| *expiry <= now) || self.until.is_empty()
    }
}
