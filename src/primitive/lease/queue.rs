//! Those who wait for leases of one key, in process: the twin of `lua/lib/queue.lua`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::store::{News, Push, id_of, process_of};

/// Who waits, in the order of arrival.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    first: VecDeque<Arc<str>>,
    /// Who goes after those.
    second: VecDeque<Arc<str>>,
    /// Until when each counts as alive, µs.
    beats: HashMap<Arc<str>, i64>,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.beats.is_empty()
    }

    pub(crate) fn contains(&self, token: &str) -> bool {
        self.beats.contains_key(token)
    }

    /// The first of rank 0.
    pub(crate) fn first(&self) -> Option<&Arc<str>> {
        self.first.front()
    }

    /// The first of rank 1.
    pub(crate) fn second(&self) -> Option<&Arc<str>> {
        self.second.front()
    }

    /// Whether a token stands in the queue.
    pub(crate) fn has_place(&self, token: &str) -> bool {
        self.first.iter().chain(&self.second).any(|other| **other == *token)
    }

    /// Whether anybody stands in the queue.
    pub(crate) fn has_places(&self) -> bool {
        !(self.first.is_empty() && self.second.is_empty())
    }

    /// Whether there are fewer places than tokens that wait: the lists were evicted.
    pub(crate) fn is_evicted(&self) -> bool {
        self.first.len() + self.second.len() < self.beats.len()
    }

    /// Evicts the lists, as Redis may.
    #[cfg(test)]
    pub(crate) fn evict(&mut self) {
        self.first.clear();
        self.second.clear();
    }

    /// How many stand before a token in its rank.
    pub(crate) fn position(&self, token: &str) -> i64 {
        let position = |rank: &VecDeque<Arc<str>>| rank.iter().position(|other| **other == *token);
        position(&self.first).or(position(&self.second)).unwrap_or(0) as i64
    }

    /// How many go before one of a rank.
    pub(crate) fn ahead(&self, rank: i64) -> i64 {
        (self.first.len() + if rank > 0 { self.second.len() } else { 0 }) as i64
    }

    /// Puts a token at the end of its rank; how many that makes there.
    pub(crate) fn line_up(&mut self, token: Arc<str>, rank: i64, until: i64) -> usize {
        let line = if rank > 0 { &mut self.second } else { &mut self.first };
        line.push_back(Arc::clone(&token));
        self.beats.insert(token, until);
        line.len()
    }

    /// Says that a token is alive; whether it waits at all.
    pub(crate) fn beat(&mut self, token: &str, until: i64) -> bool {
        self.beats.get_mut(token).map(|alive| *alive = until).is_some()
    }

    /// Whether a token has beaten of late.
    pub(crate) fn is_alive(&self, token: &str, now: i64) -> bool {
        self.beats.get(token).is_some_and(|until| *until > now)
    }

    /// Takes a token out; until when it counted as alive, if it waited.
    pub(crate) fn leave(&mut self, token: &str) -> Option<i64> {
        let until = self.beats.remove(token)?;
        for line in [&mut self.first, &mut self.second] {
            // It is mostly at the front.
            if let Some(position) = line.iter().position(|other| **other == *token) {
                line.remove(position);
            }
        }
        Some(until)
    }

    /// Takes out those who no longer beat.
    pub(crate) fn drop_dead(&mut self, now: i64) {
        let dead = |(token, until): (&Arc<str>, &i64)| (*until <= now).then(|| Arc::clone(token));
        for token in self.beats.iter().filter_map(dead).collect::<Vec<_>>() {
            self.leave(&token);
        }
    }

    /// Sends all away: what their processes hear.
    pub(crate) fn dismiss(&mut self, told: Option<Arc<[u8]>>) -> Vec<Push> {
        let news = told.map_or(News::Gone, News::Told);
        let mut heard: Vec<(Arc<str>, Push)> = Vec::new();
        for token in std::mem::take(self).first {
            let Some(id) = id_of(&token) else { continue };
            match heard.iter_mut().find(|(other, _)| process_of(other) == process_of(&token)) {
                Some((_, push)) => push.ids.push(id),
                None => heard.push((token, Push { ids: vec![id], news: news.clone() })),
            }
        }
        heard.into_iter().map(|(_, push)| push).collect()
    }
}
