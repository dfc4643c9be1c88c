//! The key on the server: the crate's own [`KeyState`] and operations, except for the flaws.

use std::slice;

use crate::lease::key_state::{KeyState, Position};
use crate::lease::kind::{Completing, Entered, Holders};
use crate::lease::model::properties::{DONE, FENCES, ORDER, PLACES};
use crate::lease::model::rules::{Flaw, Rules, TICK};
use crate::lease::model::turns::Turns;
use crate::lease::queue::Queue;
use crate::store::notifier::Push;
use crate::store::operation::Cell as _;

/// The operations of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Acquire,
    Release,
    /// A release that leaves a tombstone.
    Withdraw,
    Renew,
    Heartbeat,
    Complete,
}

impl Verb {
    /// The release of a token whose acquire may run again.
    pub(super) fn ending(runs_again: bool) -> Self {
        if runs_again {
            Self::Withdraw
        } else {
            Self::Release
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Server<H> {
    pub(super) state: KeyState<H>,
    pub(super) now: i64,
    /// The tokens that were released: a set of bits.
    pub(super) released: u32,
    /// The fence of the last grant.
    pub(super) fence: i64,
    /// Whether an outcome was stored. After that no token may hold.
    pub(super) entered: bool,
    pub(super) seen: Turns,
}

/// A waiter: its token, how many of its rank are before it, and whether it counts as alive.
pub(super) type Place = (usize, i64, bool);

impl<H: Holders> Server<H> {
    pub(super) fn new() -> Self {
        // Long after the epoch, since fences are times.
        Self {
            now: 1_000_000 * TICK,
            ..Self::default()
        }
    }

    /// Expired state is dropped at once.
    pub(super) fn tick(&mut self, rules: &Rules, ticks: i64) {
        self.now += ticks * TICK;
        let places = self.places(rules);
        // Renews nothing, but sweeps.
        self.state.renew(&"".into(), 0, 0, self.now);
        self.state.tombstones.retain(|_, until| *until > self.now);
        let (now, after) = (self.now, self.places(rules));
        self.seen.keep(rules, &after, now);
        self.seen.waited(&places, &after, now);
        let queue = &self.state.queue;
        let displaced = |(token, _, alive): &Place| *alive && !queue.has_place(rules.name(*token));
        self.seen.broken.note(PLACES, places.iter().any(displaced));
    }

    pub(super) fn is_held(&self, rules: &Rules, token: usize) -> bool {
        self.state
            .holders
            .held(rules.name(token), self.now)
            .is_some()
    }

    pub(super) fn is_alive(&self, rules: &Rules, token: usize) -> bool {
        self.state.queue.is_alive(rules.name(token), self.now)
    }

    /// Returns all tokens that have a place.
    fn places(&self, rules: &Rules) -> Vec<Place> {
        let queue = &self.state.queue;
        let place = |token| {
            let name = rules.name(token);
            queue
                .has_place(name)
                .then(|| (token, queue.position(name), self.is_alive(rules, token)))
        };
        rules.tokens().filter_map(place).collect()
    }

    /// Runs a call. Returns the state of the token, and the pushed messages.
    pub(super) fn execute(
        &mut self,
        rules: &Rules,
        token: usize,
        verb: Verb,
    ) -> (Position, Vec<Push>) {
        let held: Vec<_> = rules
            .tokens()
            .filter(|token| self.is_held(rules, *token))
            .collect();
        let places = self.places(rules);
        let newest_first = self.seen.newest_first(rules, self.now);
        let standing = self.step(rules, token, verb);
        let new = rules
            .tokens()
            .filter(|token| !held.contains(token) && self.is_held(rules, *token));
        for new in new.collect::<Vec<_>>() {
            let before = |other: &Place| {
                overtakes(rules, &places, new, *other, newest_first)
                    && self.is_alive(rules, other.0)
            };
            let overtakes = places.iter().any(before);
            self.seen.broken.note(ORDER, overtakes);
            self.seen.broken.note(DONE, self.entered);
            self.seen.granted(rules, &places, new, self.now);
            let fence = self
                .state
                .holders
                .held(rules.name(new), self.now)
                .map_or(0, |(_, fence)| fence);
            let fence = if rules.has(Flaw::FenceIsTheClock) {
                self.now
            } else {
                fence
            };
            // A shared holder has the fence of the exclusive holder before it.
            let shares = rules.of(new).weight < rules.capacity;
            self.seen.broken.note(
                FENCES,
                fence < self.fence || (fence == self.fence && !shares),
            );
            self.fence = fence;
        }
        let after = self.places(rules);
        self.seen.keep(rules, &after, self.now);
        self.seen.waited(&places, &after, self.now);
        (standing, self.state.pushes())
    }

    fn step(&mut self, rules: &Rules, token: usize, verb: Verb) -> Position {
        let (state, now, spans, name) =
            (&mut self.state, self.now, rules.spans(), rules.name(token));
        match verb {
            Verb::Acquire => {
                let (done, kept_until) = (self.entered.then_some(true), state.kept_until);
                let told = rules.told();
                if rules.has(Flaw::SmallGoesFirst) {
                    let mut alone = KeyState {
                        queue: Queue::default(),
                        ..state.clone()
                    };
                    let standing =
                        alone.acquire(name, rules.terms(token), Some(&told), done, now, spans);
                    if let Position::Held { .. } = standing {
                        state.holders = alone.holders;
                        return standing;
                    }
                }
                let standing =
                    state.acquire(name, rules.terms(token), Some(&told), done, now, spans);
                if rules.has(Flaw::BusyQueueIsNotKept) && state.queue.ahead(0) > 1 {
                    state.kept_until = kept_until;
                }
                return standing;
            }
            Verb::Release | Verb::Withdraw => {
                state.release(
                    name,
                    verb == Verb::Withdraw && !rules.has(Flaw::NoTombstone),
                    now,
                    spans,
                );
                self.released |= 1 << token;
            }
            Verb::Renew => return self.renew(rules, token),
            Verb::Heartbeat => return self.heartbeat(rules, token),
            Verb::Complete => {
                let dismisses = !rules.has(Flaw::NobodyDismissed);
                let enter = |_: &mut H, of: Completing| {
                    Ok::<_, ()>(match of.is_held && dismisses {
                        true => Entered::Something,
                        false => Entered::Nothing,
                    })
                };
                self.entered |= state
                    .complete(name, now, enter)
                    .is_ok_and(|(was_held, _)| was_held);
                self.released |= 1 << token;
            }
        }
        Position::Done
    }

    fn renew(&mut self, rules: &Rules, token: usize) -> Position {
        let (state, now, name, ttl) = (
            &mut self.state,
            self.now,
            rules.name(token),
            rules.of(token).ttl * TICK,
        );
        let mut expiry = state.renew(name, ttl, 0, now);
        if expiry.is_some() && rules.has(Flaw::RenewalShortens) {
            state.holders.extend(name, now + ttl, now);
            expiry = Some(now + ttl);
        }
        match expiry {
            Some(expiry) => Position::Held { expiry, fence: 0 },
            None => Position::Done,
        }
    }

    fn heartbeat(&mut self, rules: &Rules, token: usize) -> Position {
        let (state, now, spans, name) =
            (&mut self.state, self.now, rules.spans(), rules.name(token));
        if rules.has(Flaw::HeartbeatGrantsNothing) || rules.has(Flaw::EvictionUnnoticed) {
            state.queue.heartbeat(name, now + spans.alive);
            if rules.has(Flaw::EvictionUnnoticed) {
                // Releases nothing, but grants.
                state.release(&"".into(), false, now, spans);
            }
            return match state.holders.held(name, now) {
                Some((expiry, fence)) => Position::Held { expiry, fence },
                None if state.queue.contains(name) => Position::Queued {
                    soonest: 0,
                    before: 0,
                },
                None => Position::Refused {
                    soonest: 0,
                    before: 0,
                },
            };
        }
        let (_, standings) = state.heartbeat(slice::from_ref(name), None, now, spans);
        standings[0]
    }
}

/// Returns whether a token that was granted a lease has overtaken another waiter.
fn overtakes(
    rules: &Rules,
    places: &[Place],
    new: usize,
    (other, position, alive): Place,
    newest_first: bool,
) -> bool {
    let (mine, its) = (rules.of(new).rank, rules.of(other).rank);
    alive
        && match places.iter().find(|(token, ..)| *token == new) {
            Some((_, place, _)) if newest_first => position > *place,
            Some((_, place, _)) => {
                mine == its && rules.of(new).flow == rules.of(other).flow && position < *place
            }
            None => mine >= its && !newest_first,
        }
}
