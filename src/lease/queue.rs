//! The waiters for one key: the Rust twin of `lua/lib/queue.lua`.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use super::token::Token;
use crate::store::{News, Push};

/// The number of ranks. Waiters of lower ranks are served first.
const RANKS: usize = 9;

/// The waiters in the order of their scores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// The waiters by rank and ticket.
    places: BTreeMap<(i64, i64), Arc<str>>,
    waiters: HashMap<Arc<str>, Waiter>,
    /// How many places each rank has.
    counts: [usize; RANKS],
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// Until when it counts as alive, µs.
    until: i64,
    place: (i64, i64),
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(crate) fn contains(&self, token: &str) -> bool {
        self.waiters.contains_key(token)
    }

    /// Returns the waiter with the lowest score.
    pub(crate) fn first(&self) -> Option<&Arc<str>> {
        Some(self.places.first_key_value()?.1)
    }

    /// Returns the first waiter of a rank.
    pub(crate) fn first_of(&self, rank: i64) -> Option<&Arc<str>> {
        Some(self.places.range((rank, 0)..(rank + 1, 0)).next()?.1)
    }

    /// Returns whether a token has a place in the queue.
    pub(crate) fn has_place(&self, token: &str) -> bool {
        let place = self.waiters.get(token).and_then(|waiter| self.places.get(&waiter.place));
        place.is_some_and(|other| **other == *token)
    }

    /// Returns whether any token has a place in the queue.
    pub(crate) fn has_places(&self) -> bool {
        !self.places.is_empty()
    }

    /// Returns whether there are fewer places than waiters: the queue was evicted.
    pub(crate) fn is_evicted(&self) -> bool {
        self.places.len() < self.waiters.len()
    }

    /// Evicts the places, as Redis may do.
    #[cfg(test)]
    pub(crate) fn evict(&mut self) {
        self.places.clear();
        self.counts = [0; RANKS];
    }

    /// Returns how many waiters are before a token.
    pub(crate) fn position(&self, token: &str) -> i64 {
        self.waiters.get(token).map_or(0, |waiter| self.places.range(..waiter.place).count()) as i64
    }

    /// Returns how many waiters have this rank or a lower one.
    pub(crate) fn ahead(&self, rank: i64) -> i64 {
        self.counts.iter().zip(0..=rank).map(|(count, _)| *count).sum::<usize>() as i64
    }

    /// Appends a token to its rank. Returns whether it is alone in that.
    pub(crate) fn line_up(&mut self, token: Arc<str>, rank: i64, until: i64) -> bool {
        let rank = rank.clamp(0, RANKS as i64 - 1);
        let last = self.places.range((rank, 0)..(rank + 1, 0)).next_back().map(|((_, ticket), _)| *ticket);
        let place = (rank, last.map_or(0, |ticket| ticket + 1));
        self.places.insert(place, Arc::clone(&token));
        self.waiters.insert(token, Waiter { until, place });
        self.counts[rank as usize] += 1;
        last.is_none()
    }

    /// Marks a token as alive. Returns whether it waits.
    pub(crate) fn heartbeat(&mut self, token: &str, until: i64) -> bool {
        self.waiters.get_mut(token).map(|waiter| waiter.until = until).is_some()
    }

    /// Returns whether a token sent a heartbeat recently.
    pub(crate) fn is_alive(&self, token: &str, now: i64) -> bool {
        self.waiters.get(token).is_some_and(|waiter| waiter.until > now)
    }

    /// Removes a token. Returns until when it counted as alive, if it waited.
    pub(crate) fn leave(&mut self, token: &str) -> Option<i64> {
        let Waiter { until, place } = self.waiters.remove(token)?;
        // Another waiter may have its place after an eviction.
        if self.places.get(&place).is_some_and(|other| **other == *token) {
            self.places.remove(&place);
            self.counts[place.0 as usize] -= 1;
        }
        Some(until)
    }

    /// Removes the waiters that stopped sending heartbeats.
    pub(crate) fn drop_dead(&mut self, now: i64) {
        let dead = |(token, waiter): (&Arc<str>, &Waiter)| (waiter.until <= now).then(|| Arc::clone(token));
        for token in self.waiters.iter().filter_map(dead).collect::<Vec<_>>() {
            self.leave(&token);
        }
    }

    /// Empties the queue. Returns the messages to the waiters' processes.
    pub(crate) fn dismiss(&mut self, told: Option<Arc<[u8]>>) -> Vec<Push> {
        let news = told.map_or(News::Gone, News::Told);
        let (places, mut heard) = (std::mem::take(self).places, Vec::<(&str, Push)>::new());
        for Token { process, id, .. } in places.values().filter_map(|token| Token::parse(token)) {
            match heard.iter_mut().find(|(other, _)| *other == process) {
                Some((_, push)) => push.ids.push(id),
                None => heard.push((process, Push { ids: vec![id], news: news.clone() })),
            }
        }
        heard.into_iter().map(|(_, push)| push).collect()
    }
}
