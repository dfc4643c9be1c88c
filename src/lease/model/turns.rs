//! Observations of flows and classes, and of the newest waiters.

use crate::lease::model::properties::{AGED, Broken, CLASSES, SHARES};
use crate::lease::model::rules::{Rules, TICK};
use crate::lease::model::server::Place;

/// Observations of the waiters for permits.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// The flows that have passed each waiter since it became the first of its own: a set of bits.
    pub(super) passed: Vec<u8>,
    /// Since when each waiter has been the first of its class, and no waiter of that class was served, µs.
    pub(super) since: Vec<Option<i64>>,
    /// The properties that the server has violated.
    pub(super) broken: Broken,
    /// Whether a waiter of a lower class was served first because it had waited for too long.
    pub(super) aged: bool,
    /// Since when there are waiters, µs.
    pub(super) waits: Option<i64>,
    /// Whether a waiter was served before one that came earlier, because there had been waiters for long enough.
    pub(super) newest: bool,
}

impl Turns {
    /// Returns whether the newest waiter is served first now.
    pub(super) fn newest_first(&self, rules: &Rules, now: i64) -> bool {
        rules.newest > 0
            && self
                .waits
                .is_some_and(|since| now - since >= rules.newest * TICK)
    }

    /// Records the waiters `before` and `after` a step.
    pub(super) fn waited(&mut self, before: &[Place], after: &[Place], now: i64) {
        let stays = |(token, ..): &Place| after.iter().any(|(other, ..)| other == token);
        if !before.iter().any(stays) {
            self.waits = (!after.is_empty()).then_some(now);
        }
    }

    /// Records a grant to a token. `places`: before the step.
    pub(super) fn granted(&mut self, rules: &Rules, places: &[Place], new: usize, now: i64) {
        let mine = rules.of(new);
        let place = |token: usize| {
            places
                .iter()
                .find(|(other, ..)| *other == token)
                .map(|(_, place, _)| *place)
        };
        self.newest |= rules.newest > 0
            && places.iter().any(|(other, at, alive)| {
                *alive && place(new).is_some_and(|mine| *at < mine) && *other != new
            });
        let has_waited = |turns: &Self, token: usize| {
            let since = turns.since.get(token).copied().flatten();
            since.is_some_and(|since| now - since >= rules.aging * TICK)
        };
        for (other, _, _) in places
            .iter()
            .filter(|(other, _, alive)| *alive && *other != new)
        {
            let its = rules.of(*other);
            if mine.flow > 0 && its.flow != mine.flow && its.rank == mine.rank {
                let is_head = head(rules, places, *other);
                let bit = 1 << mine.flow;
                self.passed.resize(rules.tokens().end, 0);
                let passes_again = is_head && self.passed[*other] & bit != 0;
                self.broken
                    .note(SHARES, passes_again && mine.weight == its.weight);
                if is_head {
                    self.passed[*other] |= bit;
                }
            }
            if rules.aging > 0 {
                let (new_waited, its_waited) = (has_waited(self, new), has_waited(self, *other));
                self.broken
                    .note(CLASSES, mine.rank > its.rank && !new_waited);
                self.aged |= mine.rank > its.rank && new_waited;
                self.broken.note(AGED, mine.rank < its.rank && its_waited);
            }
        }
        // Its class was served now.
        for (token, since) in self.since.iter_mut().enumerate() {
            if rules.of(token).rank == mine.rank && since.is_some() {
                *since = Some(now);
            }
        }
    }

    /// Returns the flows that have passed a waiter, and since when it waits for its class.
    pub(super) fn of(&self, token: usize) -> (i64, Option<i64>) {
        let passed = self.passed.get(token).copied().unwrap_or(0);
        (passed.into(), self.since.get(token).copied().flatten())
    }

    /// Forgets the observations of tokens that no longer wait. `places`: after the step.
    pub(super) fn keep(&mut self, rules: &Rules, places: &[Place], now: i64) {
        self.passed.resize(rules.tokens().end, 0);
        self.since.resize(rules.tokens().end, None);
        for token in rules.tokens() {
            let waits = places.iter().any(|(other, ..)| *other == token);
            if !waits {
                (self.passed[token], self.since[token]) = (0, None);
            } else if rules.aging > 0 {
                let rank = rules.of(token).rank;
                let same = rules.tokens().filter(|other| rules.of(*other).rank == rank);
                let known = same.filter_map(|other| self.since[other]).max();
                self.since[token] = self.since[token].or(known).or(Some(now));
            }
        }
    }
}

/// Returns whether a token is the first of its flow.
fn head(rules: &Rules, places: &[Place], token: usize) -> bool {
    let of = |token: usize| (rules.of(token).rank, rules.of(token).flow);
    let mine = places
        .iter()
        .find(|(other, ..)| *other == token)
        .map(|(_, place, _)| *place);
    let mut same = places.iter().filter(|(other, ..)| of(*other) == of(token));
    same.all(|(_, place, _)| mine.is_some_and(|mine| mine <= *place))
}
