//! The waiters for one key: the Rust counterpart of `lua/queue.lua`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::lease::order::{CLASSES, Flows, Order, RANKS};
use crate::lease::settings::Settings;
use crate::lease::token::Token;
use crate::store::notifier::{Push, PushKind};

/// A rank, a line in it, and a ticket in that line. Lower values come first.
type Place = (i64, i64, i64);

/// The line of the waiters without a flow.
const NO_FLOW: i64 = -1;

/// The rank of the waiters that are put behind all others. Their line encodes since when, and their former rank.
pub(super) const BEHIND: i64 = 15;

/// The waiters, ordered by score.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    places: BTreeMap<Place, Token>,
    /// The waiters that are put behind all others, with the lines of their places.
    behind: BTreeSet<(i64, Token)>,
    waiters: HashMap<Token, Waiter>,
    /// The number of places in each rank.
    counts: [i64; RANKS],
    /// The number of places without a flow in each rank.
    others: [i64; RANKS],
    /// `None` until there is a waiter.
    flows: Option<Box<Flows>>,
    /// When a grant of each process last expired without a renewal, µs.
    lapsed: HashMap<u64, i64>,
    /// The settings for all waiters.
    pub(super) settings: Settings,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// The time until which it counts as alive, µs.
    until: i64,
    place: Place,
    order: Order,
}

impl Queue {
    /// See [`Cell::heap_bytes`](crate::store::Cell::heap_bytes).
    pub(super) fn heap_bytes(&self) -> usize {
        let waiters = self.waiters.capacity() * size_of::<(Token, Waiter)>();
        let behind = self.behind.len() * size_of::<(i64, Token)>();
        waiters + behind + self.places.len() * size_of::<(Place, Token)>()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(crate) fn contains(&self, token: &Token) -> bool {
        self.waiters.contains_key(token)
    }

    /// Returns the first waiter of a rank, in the order of arrival.
    pub(crate) fn first_of(&self, rank: i64) -> Option<&Token> {
        Some(
            self.range((rank, NO_FLOW, 0), (rank + 1, NO_FLOW, 0))
                .next()?
                .1,
        )
    }

    /// Returns the waiter that is served first: one of the lowest rank, or of a rank that has waited for too long.
    pub(crate) fn first(&mut self, now: i64) -> Option<Token> {
        let Some((&(lowest, ..), _)) = self.places.first_key_value() else {
            return self.behind.first().map(|(_, token)| token.clone());
        };
        let rank = self.due(lowest, now).unwrap_or(lowest);
        let (&(_, line, _), first) = self
            .range((rank, NO_FLOW, 0), (rank + 1, NO_FLOW, 0))
            .next()?;
        let flows = self.flows.as_ref();
        if line != NO_FLOW {
            return Some(
                flows
                    .and_then(|flows| flows.first(rank))
                    .unwrap_or(first)
                    .clone(),
            );
        }
        if rank >= CLASSES {
            return Some(first.clone());
        }
        if let Some(head) = flows.and_then(|flows| flows.first_of_all(rank)) {
            return Some(head.clone());
        }
        let first = first.clone();
        if self.settings.newest() > 0
            && flows
                .and_then(|flows| flows.waits(rank))
                .is_none_or(|since| since > now)
        {
            // The time is missing, or is from before the clock was set back.
            self.flows().joins(rank, now);
        }
        // The first waiter is served, and so dropped, if it stopped sending heartbeats: otherwise it might never reach
        // the front.
        if !self.is_newest_first(rank, now) || !self.is_alive(&first, now) {
            return Some(first);
        }
        Some(self.line(rank, NO_FLOW).next_back()?.1.clone())
    }

    /// Returns whether the newest of a rank's waiters without a flow is served before the first one.
    fn is_newest_first(&self, rank: i64, now: i64) -> bool {
        let after = self.settings.newest();
        let since = self.flows.as_ref().and_then(|flows| flows.waits(rank));
        after > 0 && since.is_some_and(|since| since <= now && since.saturating_add(after) <= now)
    }

    /// Returns a rank above this one that is served before it now, if one has waited for too long.
    pub(crate) fn due(&self, rank: i64, now: i64) -> Option<i64> {
        let flows = self.flows.as_ref()?;
        let (aging, _) = self.settings.aging();
        let since = |rank: i64| Some((flows.is_due(rank, aging, now)?, rank));
        let waits = |rank: &i64| self.counts[*rank as usize] > 0;
        Some((rank + 1..CLASSES).filter(waits).filter_map(since).min()?.1)
    }

    /// Returns the last waiter of the longest line of a rank, which has two or more waiters. Returns `None` for a token
    /// whose own line is not empty.
    pub(crate) fn longest(&self, rank: i64, order: &Order) -> Option<Token> {
        let others = *self.others.get(rank as usize)?;
        let flows = self.flows.as_ref()?;
        let is_empty = order
            .flow
            .map_or(others == 0, |flow| !flows.waits_for(rank, flow));
        if rank >= CLASSES || !is_empty {
            return None;
        }
        let longest = flows.longest(rank);
        let line = match longest {
            _ if others > 1 && longest.is_none_or(|(length, _)| others >= length) => NO_FLOW,
            Some((_, number)) => number,
            None => return None,
        };
        Some(self.line(rank, line).next_back()?.1.clone())
    }

    /// Returns whether a token has a place in the queue.
    pub(crate) fn has_place(&self, token: &Token) -> bool {
        let Some(Waiter { place, .. }) = self.waiters.get(token) else {
            return false;
        };
        if place.0 == BEHIND {
            return self.behind.contains(&(place.1, token.clone()));
        }
        self.places.get(place).is_some_and(|other| *other == *token)
    }

    /// Returns whether any token has a place in the queue.
    pub(crate) fn has_places(&self) -> bool {
        !(self.places.is_empty() && self.behind.is_empty())
    }

    /// Returns whether there are fewer places than waiters, which means that the queue was evicted.
    pub(crate) fn is_evicted(&self) -> bool {
        self.places.len() + self.behind.len() < self.waiters.len()
    }

    /// Puts a waiter behind all others, until [`take_back`](Self::take_back).
    pub(super) fn put_behind(&mut self, token: &Token, now: i64) {
        let Some(Waiter {
            until,
            place,
            order,
        }) = self.waiters.get(token).copied()
        else {
            return;
        };
        self.remove(token, None);
        let line = line_behind(now) + place.0;
        self.behind.insert((line, token.clone()));
        self.waiters.insert(
            token.clone(),
            Waiter {
                until,
                place: (BEHIND, line, 0),
                order,
            },
        );
    }

    /// Removes the place of a waiter that was put behind all others, and returns its former rank.
    pub(super) fn take_back(&mut self, token: &Token) -> Option<i64> {
        let (rank, line, _) = self.waiters.get(token)?.place;
        let was_behind = rank == BEHIND && self.behind.remove(&(line, token.clone()));
        was_behind.then_some(line % 16)
    }

    /// Forgets waiters that have been behind all others for longer than a heartbeat counts, or since before the clock
    /// was set back.
    pub(super) fn drop_behind(&mut self, alive: i64, now: i64) {
        let known = line_behind(now - alive)..line_behind(now) + 16;
        while self
            .behind
            .first()
            .is_some_and(|(line, _)| *line < known.start)
            && let Some((_, token)) = self.behind.pop_first()
        {
            self.waiters.remove(&token);
        }
        while self
            .behind
            .last()
            .is_some_and(|(line, _)| *line >= known.end)
            && let Some((_, token)) = self.behind.pop_last()
        {
            self.waiters.remove(&token);
        }
    }

    /// Evicts the places, as Redis may do.
    #[cfg(test)]
    pub(crate) fn evict(&mut self) {
        self.places.clear();
        self.behind.clear();
        (self.counts, self.others, self.flows, self.settings) = Default::default();
    }

    /// Returns since when a rank has waiters, if that is known.
    #[cfg(test)]
    pub(crate) fn waits(&self, rank: i64) -> Option<i64> {
        self.flows.as_ref()?.waits(rank)
    }

    /// Returns how far the tag of a flow is ahead of the virtual time; -2: the flow is unknown, or its tag is in the
    /// past.
    #[cfg(test)]
    pub(crate) fn tag_ahead(&self, rank: i64, flow: u128) -> i64 {
        // If no flow of the rank has a waiter, the next flow resets the tags.
        let has_flows = self
            .range((rank, 0, 0), (rank + 1, NO_FLOW, 0))
            .next()
            .is_some();
        self.flows
            .as_ref()
            .filter(|_| has_flows)
            .map_or(-2, |flows| flows.tag_ahead(rank, flow))
    }

    /// Like [`tag_ahead`](Self::tag_ahead), for the waiters without a flow.
    #[cfg(test)]
    pub(crate) fn others_ahead(&self, rank: i64) -> i64 {
        let has_flows = self
            .range((rank, 0, 0), (rank + 1, NO_FLOW, 0))
            .next()
            .is_some();
        self.flows
            .as_ref()
            .filter(|_| has_flows)
            .map_or(-2, |flows| flows.others_ahead(rank))
    }

    #[cfg(test)]
    pub(crate) fn known_flows(&self) -> usize {
        self.flows.as_ref().map_or(0, |flows| flows.known())
    }

    /// Returns how many waiters have a lower score than a token.
    pub(crate) fn position(&self, token: &Token) -> i64 {
        let Some(Waiter { place, .. }) = self.waiters.get(token) else {
            return 0;
        };
        let (rank, line, _) = *place;
        if rank == BEHIND {
            let before = self.behind.range(..(line, token.clone())).count();
            return (self.places.len() + before) as i64;
        }
        let before = |place: Place| self.places.range(..place).count();
        let Some(flows) = self.flows.as_ref().filter(|_| line != NO_FLOW) else {
            return before(*place) as i64;
        };
        // The first waiters of all flows have lower scores than the waiters behind them.
        let position = match flows.place(rank, token) {
            (_, Some(first)) => before((rank, 0, 0)) + first,
            (firsts, None) => before(*place) + firsts - self.lines_until(rank, line),
        };
        position as i64
    }

    /// Returns how many flows up to this one have waiters.
    fn lines_until(&self, rank: i64, line: i64) -> usize {
        let mut next = 0;
        let mut count = 0;
        while let Some(((_, line, _), _)) = self.range((rank, next, 0), (rank, line + 1, 0)).next()
        {
            (next, count) = (line + 1, count + 1);
        }
        count
    }

    /// Returns how many waiters have this rank or a lower one.
    pub(crate) fn ahead(&self, rank: i64) -> i64 {
        let ranks = rank.clamp(-1, RANKS as i64 - 1) + 1;
        self.counts[..ranks as usize].iter().sum()
    }

    /// Appends a token to its line. Returns whether the keys of the queue have to be kept for longer; and, if the order
    /// is not that of arrival, how many waiters may be served before the token.
    pub(crate) fn line_up(
        &mut self,
        token: Token,
        (rank, order): (i64, Option<Order>),
        until: i64,
        now: i64,
    ) -> (bool, Option<i64>) {
        let rank = rank.clamp(0, RANKS as i64 - 1);
        if !self.has_places() {
            self.flows = None;
        }
        let ahead = self.ahead(rank);
        let of_rank = rank as usize;
        let lower = if rank > 0 { self.ahead(rank - 1) } else { 0 };
        let is_ordered = order.is_some() && rank < CLASSES;
        if self.counts[of_rank] == 0 && is_ordered {
            self.flows().starts(rank, now);
        }
        self.counts[of_rank] += 1;
        let order = order.unwrap_or(Order::ARRIVAL);
        let (line, begins, place) = match order.flow.filter(|_| is_ordered) {
            Some(flow) => {
                let added = self.flows().add(rank, flow, &token);
                // At most as many waiters of each flow as of its own are served before it, and all waiters of lower
                // ranks.
                let place = ahead.min(lower + (added.before + 1) * added.flows - 1);
                (added.line, added.begins, Some(place))
            }
            None => {
                let begins = self.others[of_rank] == 0;
                self.others[of_rank] += 1;
                if begins && is_ordered {
                    self.flows().joins(rank, now);
                }
                let is_first = !begins && is_ordered && self.is_newest_first(rank, now);
                (NO_FLOW, begins, is_first.then_some(lower))
            }
        };
        let last = self
            .line(rank, line)
            .next_back()
            .map(|((.., ticket), _)| *ticket);
        let place_of = (rank, line, last.map_or(0, |ticket| ticket + 1));
        self.places.insert(place_of, token.clone());
        self.waiters.insert(
            token,
            Waiter {
                until,
                place: place_of,
                order,
            },
        );
        (begins, place)
    }

    /// Marks a token as alive. Returns whether it waits.
    pub(crate) fn heartbeat(&mut self, token: &Token, until: i64) -> bool {
        self.waiters
            .get_mut(token)
            .map(|waiter| waiter.until = until)
            .is_some()
    }

    /// Returns whether a token sent a heartbeat recently.
    pub(crate) fn is_alive(&self, token: &Token, now: i64) -> bool {
        self.waiters
            .get(token)
            .is_some_and(|waiter| waiter.until > now)
    }

    /// Records that a grant of a process expired without a renewal. A waiter of this process is then put behind all
    /// others until its next heartbeat.
    pub(crate) fn lapse(&mut self, process: u64, expiry: i64) {
        if self.has_places() {
            let last = self.lapsed.entry(process).or_insert(expiry);
            *last = expiry.max(*last);
        }
    }

    /// Forgets expired grants that no longer matter.
    pub(crate) fn forget_lapsed(&mut self, alive: i64, now: i64) {
        self.lapsed.retain(|_, last| *last + alive > now);
    }

    /// Returns whether a grant of the waiter's process has expired since the waiter's last heartbeat, which counts for
    /// `alive` µs.
    pub(crate) fn has_lapsed(&self, token: &Token, alive: i64, now: i64) -> bool {
        if self.lapsed.is_empty() {
            return false;
        }
        // A time ahead of the clock is from before the clock was set back.
        let last = token
            .waiter()
            .and_then(|(process, _)| self.lapsed.get(&process))
            .filter(|last| **last <= now);
        last.zip(self.waiters.get(token))
            .is_some_and(|(last, waiter)| waiter.until < last + alive)
    }

    /// Removes a token. If it waited, returns the time until which it counted as alive.
    pub(crate) fn leave(&mut self, token: &Token) -> Option<i64> {
        self.remove(token, None)
    }

    /// Removes a token of this weight that is granted a lease.
    pub(crate) fn serve(&mut self, token: &Token, weight: i64, now: i64) {
        self.remove(token, Some((now, weight)));
    }

    /// Returns the rank of a waiter.
    pub(crate) fn rank_of(&self, token: &Token) -> Option<i64> {
        self.waiters.get(token).map(|waiter| waiter.place.0)
    }

    /// Removes a token. `served`: when it is granted a lease, and its weight.
    fn remove(&mut self, token: &Token, served: Option<(i64, i64)>) -> Option<i64> {
        let Waiter {
            until,
            place,
            order,
        } = self.waiters.remove(token)?;
        if place.0 == BEHIND {
            self.behind.remove(&(place.1, token.clone()));
            return Some(until);
        }
        // After an eviction, another waiter may have its place.
        if self.places.get(&place).is_none_or(|other| *other != *token) {
            return Some(until);
        }
        self.places.remove(&place);
        let (rank, line, _) = place;
        let is_several = self.counts.iter().sum::<i64>() > self.counts[rank as usize];
        self.counts[rank as usize] -= 1;
        let served = served.filter(|_| rank < CLASSES);
        if let (Some((now, _)), Some(flows)) = (served, &mut self.flows)
            && (is_several || self.settings.aging().1)
        {
            flows.aged(rank, now);
        }
        let Some(flow) = order.flow.filter(|_| line != NO_FLOW) else {
            self.others[rank as usize] -= 1;
            if let (Some((_, weight)), Some(flows)) = (served, &mut self.flows) {
                flows.serve_other(rank, weight);
            }
            return Some(until);
        };
        let of = |token: &Token| self.waiters.get(token)?.order.flow;
        let mut behind = self.line(rank, line);
        let next = behind
            .next()
            .map(|(next, token)| (*next > place, token.clone()));
        if served.is_some() {
            let newest = behind
                .next_back()
                .map(|(_, token)| token)
                .or(next.as_ref().map(|(_, next)| next));
            let share = newest.and_then(of).map_or(flow.share, |flow| flow.share);
            self.flows()
                .serve(rank, flow, next.map(|(_, next)| next), share);
            return Some(until);
        }
        let next = next.map(|(was_first, next)| {
            let of = of(&next).filter(|_| was_first);
            (next, of)
        });
        self.flows().leave(rank, flow, next);
        Some(until)
    }

    /// Removes the waiters that stopped sending heartbeats.
    pub(crate) fn drop_dead(&mut self, now: i64) {
        let dead =
            |(token, waiter): (&Token, &Waiter)| (waiter.until <= now).then(|| token.clone());
        for token in self.waiters.iter().filter_map(dead).collect::<Vec<_>>() {
            self.leave(&token);
        }
    }

    /// Empties the queue. Returns the messages to the waiters' processes.
    pub(crate) fn dismiss(&mut self, told: Option<Arc<[u8]>>) -> Vec<Push> {
        let news = told.map_or(PushKind::Gone, PushKind::Told);
        let Self { places, behind, .. } = std::mem::take(self);
        let mut heard = Vec::<(u64, Push)>::new();
        let tokens = places.values().chain(behind.iter().map(|(_, token)| token));
        for (process, id) in tokens.filter_map(Token::waiter) {
            match heard.iter_mut().find(|(other, _)| *other == process) {
                Some((_, push)) => push.ids.push(id),
                None => heard.push((
                    process,
                    Push {
                        ids: vec![id],
                        news: news.clone(),
                    },
                )),
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

    fn range(
        &self,
        from: Place,
        to: Place,
    ) -> std::collections::btree_map::Range<'_, Place, Token> {
        self.places.range(from..to)
    }
}

/// Returns the line of a waiter of rank 0 that is put behind all others now.
fn line_behind(now: i64) -> i64 {
    now.div_euclid(1000) * 16
}

#[cfg(test)]
mod tests;
