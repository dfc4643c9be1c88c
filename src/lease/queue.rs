//! The waiters for one key: the Rust twin of `lua/lib/queue.lua`.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;

use super::token::Token;
use crate::store::{News, Push};

/// The waiters in the order of arrival.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    first: VecDeque<Arc<str>>,
    /// The waiters that are served after `first`.
    second: VecDeque<Arc<str>>,
    /// Until when each waiter counts as alive, µs.
    heartbeats: HashMap<Arc<str>, i64>,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.heartbeats.is_empty()
    }

    pub(crate) fn contains(&self, token: &str) -> bool {
        self.heartbeats.contains_key(token)
    }

    /// Returns the first waiter of rank 0.
    pub(crate) fn first(&self) -> Option<&Arc<str>> {
        self.first.front()
    }

    /// Returns the first waiter of rank 1.
    pub(crate) fn second(&self) -> Option<&Arc<str>> {
        self.second.front()
    }

    /// Returns whether a token has a place in the queue.
    pub(crate) fn has_place(&self, token: &str) -> bool {
        self.first.iter().chain(&self.second).any(|other| **other == *token)
    }

    /// Returns whether any token has a place in the queue.
    pub(crate) fn has_places(&self) -> bool {
        !(self.first.is_empty() && self.second.is_empty())
    }

    /// Returns whether there are fewer places than waiters: the lists were evicted.
    pub(crate) fn is_evicted(&self) -> bool {
        self.first.len() + self.second.len() < self.heartbeats.len()
    }

    /// Evicts the lists, as Redis may do.
    #[cfg(test)]
    pub(crate) fn evict(&mut self) {
        self.first.clear();
        self.second.clear();
    }

    /// Returns how many waiters are before a token in its rank.
    pub(crate) fn position(&self, token: &str) -> i64 {
        let position = |rank: &VecDeque<Arc<str>>| rank.iter().position(|other| **other == *token);
        position(&self.first).or(position(&self.second)).unwrap_or(0) as i64
    }

    /// Returns how many waiters are ahead of a new waiter of this rank.
    pub(crate) fn ahead(&self, rank: i64) -> i64 {
        (self.first.len() + if rank > 0 { self.second.len() } else { 0 }) as i64
    }

    /// Appends a token to its rank. Returns the new length of the rank.
    pub(crate) fn line_up(&mut self, token: Arc<str>, rank: i64, until: i64) -> usize {
        let line = if rank > 0 { &mut self.second } else { &mut self.first };
        line.push_back(Arc::clone(&token));
        self.heartbeats.insert(token, until);
        line.len()
    }

    /// Marks a token as alive. Returns whether it waits.
    pub(crate) fn heartbeat(&mut self, token: &str, until: i64) -> bool {
        self.heartbeats.get_mut(token).map(|alive| *alive = until).is_some()
    }

    /// Returns whether a token sent a heartbeat recently.
    pub(crate) fn is_alive(&self, token: &str, now: i64) -> bool {
        self.heartbeats.get(token).is_some_and(|until| *until > now)
    }

    /// Removes a token. Returns until when it counted as alive, if it waited.
    pub(crate) fn leave(&mut self, token: &str) -> Option<i64> {
        let until = self.heartbeats.remove(token)?;
        for line in [&mut self.first, &mut self.second] {
            // It is usually at the front.
            if let Some(position) = line.iter().position(|other| **other == *token) {
                line.remove(position);
            }
        }
        Some(until)
    }

    /// Removes the waiters that stopped sending heartbeats.
    pub(crate) fn drop_dead(&mut self, now: i64) {
        let dead = |(token, until): (&Arc<str>, &i64)| (*until <= now).then(|| Arc::clone(token));
        for token in self.heartbeats.iter().filter_map(dead).collect::<Vec<_>>() {
            self.leave(&token);
        }
    }

    /// Empties the queue. Returns the messages to the waiters' processes.
    pub(crate) fn dismiss(&mut self, told: Option<Arc<[u8]>>) -> Vec<Push> {
        let news = told.map_or(News::Gone, News::Told);
        let (tokens, mut heard) = (std::mem::take(self).first, Vec::<(&str, Push)>::new());
        for Token { process, id, .. } in tokens.iter().filter_map(|token| Token::parse(token)) {
            match heard.iter_mut().find(|(other, _)| *other == process) {
                Some((_, push)) => push.ids.push(id),
                None => heard.push((process, Push { ids: vec![id], news: news.clone() })),
            }
        }
        heard.into_iter().map(|(_, push)| push).collect()
    }
}
