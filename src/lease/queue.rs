//! The waiters for one key: the Rust twin of `lua/lib/queue.lua`.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use super::flows::{CLASSES, Flows, Order, RANKS};
use super::token::Token;
use crate::store::{News, Push};

/// A rank, a line of it, and a ticket in that. Lower ones come first.
type Place = (i64, i64, i64);

/// The line of waiters without a flow. It is served before all others of its rank.
const NO_FLOW: i64 = -1;

/// The waiters in the order of their scores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    places: BTreeMap<Place, Token>,
    waiters: HashMap<Token, Waiter>,
    /// How many places each rank has.
    counts: [i64; RANKS],
    /// `None` until a waiter needs them.
    flows: Option<Box<Flows>>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// Until when it counts as alive, µs.
    until: i64,
    place: Place,
    order: Order,
}

impl Queue {
    /// See [`Cell::heap_bytes`](crate::store::Cell::heap_bytes).
    pub(super) fn heap_bytes(&self) -> usize {
        let waiters = self.waiters.capacity() * size_of::<(Token, Waiter)>();
        waiters + self.places.len() * size_of::<(Place, Token)>()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(crate) fn contains(&self, token: &Token) -> bool {
        self.waiters.contains_key(token)
    }

    /// Returns the first waiter of a rank, in the order of arrival.
    pub(crate) fn first_of(&self, rank: i64) -> Option<&Token> {
        Some(self.range((rank, NO_FLOW, 0), (rank + 1, NO_FLOW, 0)).next()?.1)
    }

    /// Returns the waiter that is served first: one of the lowest rank, or of a rank that has waited for too long.
    pub(crate) fn first(&self, now: i64) -> Option<&Token> {
        let (&(lowest, ..), _) = self.places.first_key_value()?;
        let (mut has_flow, mut first) = self.lowest(lowest)?;
        let order = self.waiters.get(first)?.order;
        if let Some(rank) = self.due(lowest, || order, now) {
            (has_flow, first) = self.lowest(rank)?;
        }
        let rank = self.waiters.get(first)?.place.0;
        if has_flow || !self.is_newest_first(rank, now) || !self.is_alive(first, now) {
            // The first one is dropped if it stopped sending heartbeats: its turn may never come.
            return Some(first);
        }
        Some(self.line(rank, NO_FLOW).next_back()?.1)
    }

    /// Returns the waiter with the lowest score of a rank, and whether it has a flow.
    fn lowest(&self, rank: i64) -> Option<(bool, &Token)> {
        let (&(_, line, _), first) = self.range((rank, NO_FLOW, 0), (rank + 1, NO_FLOW, 0)).next()?;
        let head = self.flows.as_ref().filter(|_| line != NO_FLOW).and_then(|flows| flows.first(rank));
        Some((line != NO_FLOW, head.unwrap_or(first)))
    }

    /// Returns whether the newest waiter without a flow of a rank is served before the first one, by the setting of that.
    fn is_newest_first(&self, rank: i64, now: i64) -> bool {
        let after = self.newest(self.line(rank, NO_FLOW).next());
        let since = self.flows.as_ref().and_then(|flows| flows.waits(rank));
        after.zip(since).is_some_and(|(after, since)| since.saturating_add(after) <= now)
    }

    /// Returns the setting of a waiter that may be served newest first.
    fn newest(&self, waiter: Option<(&Place, &Token)>) -> Option<i64> {
        self.waiters.get(waiter?.1)?.order.newest
    }

    /// Returns the rank above this one that is served before it now, if one has waited for too long.
    pub(crate) fn due(&self, rank: i64, order: impl FnOnce() -> Order, now: i64) -> Option<i64> {
        let flows = self.flows.as_ref()?;
        let aging = order().aging?;
        let since = |rank: i64| Some((flows.is_due(rank, aging, now)?, rank));
        let waits = |rank: &i64| self.counts[*rank as usize] > 0;
        Some((rank + 1..CLASSES).filter(waits).filter_map(since).min()?.1)
    }

    /// Returns whether a token has a place in the queue.
    pub(crate) fn has_place(&self, token: &Token) -> bool {
        let place = self.waiters.get(token).and_then(|waiter| self.places.get(&waiter.place));
        place.is_some_and(|other| *other == *token)
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
        (self.counts, self.flows) = Default::default();
    }

    /// Returns since when a rank has waiters, if that is known.
    #[cfg(test)]
    pub(crate) fn waits(&self, rank: i64) -> Option<i64> {
        self.flows.as_ref()?.waits(rank)
    }

    /// Returns how far the tag of a flow is ahead of the virtual time; -2: nothing is known of it, or its turn is over.
    #[cfg(test)]
    pub(crate) fn tag_ahead(&self, rank: i64, flow: i64) -> i64 {
        // Where no flow of the rank has a waiter, all is forgotten with the next one.
        let has_flows = self.range((rank, 0, 0), (rank + 1, NO_FLOW, 0)).next().is_some();
        self.flows.as_ref().filter(|_| has_flows).map_or(-2, |flows| flows.tag_ahead(rank, flow))
    }

    #[cfg(test)]
    pub(crate) fn known_flows(&self) -> usize {
        self.flows.as_ref().map_or(0, |flows| flows.known())
    }

    /// Returns how many waiters have a lower score than a token.
    pub(crate) fn position(&self, token: &Token) -> i64 {
        let Some(Waiter { place, .. }) = self.waiters.get(token) else { return 0 };
        let (rank, line, _) = *place;
        let before = |place: Place| self.places.range(..place).count();
        let Some(flows) = self.flows.as_ref().filter(|_| line != NO_FLOW) else {
            return before(*place) as i64;
        };
        // The first ones of all flows have lower scores than those behind them.
        let position = match flows.place(rank, token) {
            (_, Some(first)) => before((rank, 0, 0)) + first,
            (firsts, None) => before(*place) + firsts - self.lines_until(rank, line),
        };
        position as i64
    }

    /// Returns how many flows up to this one have waiters.
    fn lines_until(&self, rank: i64, line: i64) -> usize {
        let (mut next, mut count) = (0, 0);
        while let Some(((_, line, _), _)) = self.range((rank, next, 0), (rank, line + 1, 0)).next() {
            (next, count) = (line + 1, count + 1);
        }
        count
    }

    /// Returns how many waiters have this rank or a lower one.
    pub(crate) fn ahead(&self, rank: i64) -> i64 {
        self.counts.iter().zip(0..=rank).map(|(count, _)| count).sum()
    }

    /// Appends a token to its line. Returns whether the keys of the queue have to be kept for longer; and how many waiters
    /// may be served before it, if that is not the order of arrival.
    pub(crate) fn line_up(
        &mut self,
        token: Token,
        (rank, order): (i64, Order),
        until: i64,
        now: i64,
    ) -> (bool, Option<i64>) {
        let rank = rank.clamp(0, RANKS as i64 - 1);
        let ahead = self.ahead(rank);
        let starts = self.counts[rank as usize] == 0;
        let aged = order.aging.is_some() && (self.flows().aged(rank, starts, now) || starts);
        let line = order.flow.map_or(NO_FLOW, |flow| flow.number);
        let joins = order.newest.is_some() && {
            let mut line = self.line(rank, NO_FLOW);
            // Waiters without this setting record nothing.
            let goes_on =
                self.newest(line.clone().next()).or_else(|| self.newest(line.next_back())).is_some();
            self.flows().joins(rank, goes_on, now)
        };
        let last = self.line(rank, line).next_back().map(|((.., ticket), _)| *ticket);
        let place = (rank, line, last.map_or(0, |ticket| ticket + 1));
        self.places.insert(place, token.clone());
        self.waiters.insert(token.clone(), Waiter { until, place, order });
        self.counts[rank as usize] += 1;
        let lower = if rank > 0 { self.ahead(rank - 1) } else { 0 };
        let Some(flow) = order.flow else {
            let is_first = order.newest.is_some() && !joins && self.is_newest_first(rank, now);
            return (last.is_none() || aged || joins, is_first.then_some(lower));
        };
        let (flows, before, begins) = self.flows().add(rank, flow, &token);
        // At most as many of each flow as of its own, after all of lower ranks.
        let place = ahead.min(lower + (before + 1) * flows - 1);
        (aged || begins, Some(place))
    }

    /// Marks a token as alive. Returns whether it waits.
    pub(crate) fn heartbeat(&mut self, token: &Token, until: i64) -> bool {
        self.waiters.get_mut(token).map(|waiter| waiter.until = until).is_some()
    }

    /// Returns whether a token sent a heartbeat recently.
    pub(crate) fn is_alive(&self, token: &Token, now: i64) -> bool {
        self.waiters.get(token).is_some_and(|waiter| waiter.until > now)
    }

    /// Removes a token. Returns until when it counted as alive, if it waited.
    pub(crate) fn leave(&mut self, token: &Token) -> Option<i64> {
        self.remove(token, None)
    }

    /// Removes a token that is granted a lease.
    pub(crate) fn serve(&mut self, token: &Token, now: i64) {
        self.remove(token, Some(now));
    }

    fn remove(&mut self, token: &Token, served: Option<i64>) -> Option<i64> {
        let Waiter { until, place, order } = self.waiters.remove(token)?;
        // Another waiter may have its place after an eviction.
        if self.places.get(&place).is_none_or(|other| *other != *token) {
            return Some(until);
        }
        self.places.remove(&place);
        let (rank, line, _) = place;
        self.counts[rank as usize] -= 1;
        if let (Some(now), Some(_)) = (served, order.aging) {
            self.flows().aged(rank, true, now);
        }
        if let Some(flow) = order.flow {
            let next = self.line(rank, line).next().map(|(next, token)| (*next > place, token.clone()));
            if served.is_some() {
                self.flows().serve(rank, flow, next.map(|(_, next)| next));
                return Some(until);
            }
            let cost = |token: &Token| Some(self.waiters.get(token)?.order.flow?.cost);
            let next = next.map(|(was_first, next)| {
                let cost = cost(&next).filter(|_| was_first);
                (next, cost)
            });
            self.flows().leave(rank, flow, next);
        }
        Some(until)
    }

    /// Removes the waiters that stopped sending heartbeats.
    pub(crate) fn drop_dead(&mut self, now: i64) {
        let dead = |(token, waiter): (&Token, &Waiter)| (waiter.until <= now).then(|| token.clone());
        for token in self.waiters.iter().filter_map(dead).collect::<Vec<_>>() {
            self.leave(&token);
        }
    }

    /// Empties the queue. Returns the messages to the waiters' processes.
    pub(crate) fn dismiss(&mut self, told: Option<Arc<[u8]>>) -> Vec<Push> {
        let news = told.map_or(News::Gone, News::Told);
        let (places, mut heard) = (std::mem::take(self).places, Vec::<(u64, Push)>::new());
        for (process, id) in places.values().filter_map(Token::waiter) {
            match heard.iter_mut().find(|(other, _)| *other == process) {
                Some((_, push)) => push.ids.push(id),
                None => heard.push((process, Push { ids: vec![id], news: news.clone() })),
            }
        }
        heard.into_iter().map(|(_, push)| push).collect()
    }

    fn flows(&mut self) -> &mut Flows {
        self.flows.get_or_insert_default()
    }

    /// Returns the waiters of a line.
    fn line(&self, rank: i64, line: i64) -> std::collections::btree_map::Range<'_, Place, Token> {
        self.range((rank, line, 0), (rank, line + 1, 0))
    }

    fn range(&self, from: Place, to: Place) -> std::collections::btree_map::Range<'_, Place, Token> {
        self.places.range(from..to)
    }
}

#[cfg(test)]
mod tests;
