//! The holders of a key that several tokens can hold at once, and when their leases end.

use hashbrown::{HashMap, HashSet};

use super::token::Token;

/// When the lease of each holder ends (µs), and its weight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    until: Holders,
    /// No lease ends before.
    first: i64,
    used: i64,
    /// The grants that waiters have not renewed.
    granted: HashSet<Token>,
    /// Those that have expired, and when.
    lapsed: Vec<(Token, i64)>,
}

/// When a lease ends, and its weight.
type End = (i64, i64);

/// A map of which one entry needs no allocation: most keys have one holder at a time.
#[derive(Clone, Debug, Default)]
struct Holders {
    one: Option<(Token, End)>,
    others: HashMap<Token, End>,
}

impl Holders {
    fn is_empty(&self) -> bool {
        self.one.is_none() && self.others.is_empty()
    }

    fn clear(&mut self) {
        self.one = None;
        self.others.clear();
    }

    /// The token is not in the map.
    fn insert(&mut self, token: Token, end: End) {
        match self.one {
            None => self.one = Some((token, end)),
            Some(_) => drop(self.others.insert(token, end)),
        }
    }

    fn get(&self, token: &Token) -> Option<&End> {
        let one = self.one.as_ref().filter(|(one, _)| one == token);
        one.map(|(_, end)| end).or_else(|| self.others.get(token))
    }

    fn get_mut(&mut self, token: &Token) -> Option<&mut End> {
        let one = self.one.as_mut().filter(|(one, _)| one == token);
        one.map(|(_, end)| end)
            .or_else(|| self.others.get_mut(token))
    }

    fn remove(&mut self, token: &Token) -> Option<End> {
        let one = self.one.take_if(|(one, _)| one == token);
        one.map(|(_, end)| end)
            .or_else(|| self.others.remove(token))
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
        (self.first, self.used) = (0, 0);
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

    /// A lease was granted to a waiter.
    pub(crate) fn granted(&mut self, token: &Token) {
        if self.until.get(token).is_some() {
            self.granted.insert(token.clone());
        }
    }

    /// Returns whether a lease was granted to a waiter, and not renewed since.
    pub(crate) fn is_granted(&self, token: &Token) -> bool {
        self.granted.contains(token)
    }

    /// It is renewed.
    pub(crate) fn confirm(&mut self, token: &Token) {
        self.granted.remove(token);
    }

    /// Returns the grants that expired before they were renewed, since the last call.
    pub(crate) fn lapsed(&mut self) -> Vec<(Token, i64)> {
        std::mem::take(&mut self.lapsed)
    }

    /// Sets the end of a lease. Leases never get shorter here.
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
        let removed = self.until.remove(token);
        self.used -= removed.map_or(0, |(_, weight)| weight);
        removed.is_some()
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
        if now >= self.first {
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

    /// Implements [`Holders::soonest`](super::kind::Holders::soonest).
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
        now >= self.first && self.until.iter().all(|(_, (expiry, _))| *expiry <= now)
            || self.until.is_empty()
    }
}
