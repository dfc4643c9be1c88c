//! The holders of a key that several tokens can hold at once, and when their leases end.

use std::sync::Arc;

use hashbrown::HashMap;

use super::token::ttl_of;

/// When the lease of each holder ends, µs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    until: HashMap<Arc<str>, i64>,
    /// No lease ends before.
    first: i64,
}

impl Ends {
    pub(crate) fn insert(&mut self, token: &Arc<str>, expiry: i64) {
        self.first = if self.until.is_empty() { expiry } else { self.first.min(expiry) };
        self.until.insert(Arc::clone(token), expiry);
    }

    pub(crate) fn get(&self, token: &str) -> Option<i64> {
        self.until.get(token).copied()
    }

    /// Sets the end of a lease. Leases never get shorter here.
    pub(crate) fn extend(&mut self, token: &str, expiry: i64) {
        if let Some(until) = self.until.get_mut(token) {
            *until = expiry;
            self.first = self.first.min(expiry);
        }
    }

    /// Returns whether the token was one of a holder.
    pub(crate) fn remove(&mut self, token: &str) -> bool {
        self.until.remove(token).is_some()
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = &Arc<str>> {
        self.until.keys()
    }

    pub(crate) fn len(&self) -> usize {
        self.until.len()
    }

    /// Removes the leases that have ended, and calls `ended` for each.
    pub(crate) fn sweep(&mut self, now: i64, mut ended: impl FnMut(&str)) {
        if now < self.first {
            return;
        }
        self.until.retain(|token, expiry| {
            let stays = *expiry > now;
            if !stays {
                ended(token);
            }
            stays
        });
        self.first = self.until.values().copied().min().unwrap_or(0);
    }

    /// Implements [`Holders::soonest`](super::kind::Holders::soonest).
    pub(crate) fn soonest(&mut self, now: i64) -> i64 {
        let longest = |token: &str| ttl_of(token).map_or(i64::MAX, |ttl| now + ttl);
        let by_end = |(token, expiry): &(&Arc<str>, &i64)| (**expiry, Arc::clone(token));
        let ends = [self.until.iter().min_by_key(by_end), self.until.iter().max_by_key(by_end)];
        if ends.into_iter().flatten().any(|(token, expiry)| *expiry > longest(token)) {
            self.until.iter_mut().for_each(|(token, expiry)| *expiry = (*expiry).min(longest(token)));
        }
        self.first = self.until.values().copied().min().unwrap_or(0);
        self.first
    }

    pub(crate) fn have_ended(&self, now: i64) -> bool {
        now >= self.first && self.until.values().all(|expiry| *expiry <= now) || self.until.is_empty()
    }
}
