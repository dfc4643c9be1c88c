//! The properties that must always hold, and the states that must be reachable. The latter show that the former do not
//! hold only because nothing happens.

use std::collections::BTreeSet;

use stateright::Property;

use crate::lease::model::client::Held;
use crate::lease::model::rules::TICK;
use crate::lease::model::world::{Message, What, World};
use crate::lease::model::{Modelled, Protocol};

pub(super) const EXCLUSION: &str = "the holders that believe in their leases fit the capacity";
pub(super) const COVERED: &str = "a belief ends no later than the lease on the server";
pub(super) const BOUNDED: &str = "no belief lasts longer than the ttl";
pub(super) const FENCES: &str = "each exclusive holder has a higher fence than all before it";
pub(super) const ORDER: &str = "no waiter overtakes another in the queue, or all do once there have been waiters for long enough";
pub(super) const SHARES: &str = "each flow passes a waiter at the head of another one at most once";
pub(super) const CLASSES: &str =
    "a class goes before those below it, unless one of these has waited for too long";
pub(super) const AGED: &str = "a class that has waited for too long goes before those above it";
pub(super) const PLACES: &str = "no waiter that counts as alive loses its place";
pub(super) const FAIR: &str = "the waiters of one process are served in the order of arrival";
pub(super) const RELEASED: &str = "a released token neither holds nor waits again";
pub(super) const GOOD: &str = "no waiter is handed an expired lease";
pub(super) const PROMPT: &str = "a grant that is received at once is in time";
pub(super) const DONE: &str = "no token is granted a lease after a completion";
pub(super) const SERVED: &str = "without further faults, every waiter is served";
pub(super) const BESIDE: &str =
    "without further faults, every waiter that fits is served beside the holders";

/// The properties whose violation is recorded as soon as it happens.
pub(super) const NOTED: [&str; 10] = [
    FENCES, ORDER, SHARES, CLASSES, AGED, PLACES, FAIR, GOOD, PROMPT, DONE,
];

/// The properties that are broken.
#[derive(Clone, Debug, Default)]
pub(super) struct Broken(BTreeSet<&'static str>);

impl Broken {
    pub(super) fn note(&mut self, property: &'static str, is_broken: bool) {
        if is_broken {
            self.0.insert(property);
        }
    }
}

/// A property, and whether a world has it.
type Named<H> = (&'static str, fn(&Protocol<H>, &World<H>) -> bool);

impl<H: Modelled> Protocol<H> {
    pub(super) fn always() -> Vec<Property<Self>> {
        let all: [Named<H>; 16] = [
            (EXCLUSION, |_, world| {
                world.believed_weight() <= world.rules.capacity
            }),
            (COVERED, |_, world| world.is_covered()),
            (BOUNDED, |_, world| world.is_bounded()),
            (FENCES, |_, world| !H::FENCED || world.keeps(FENCES)),
            (ORDER, |_, world| world.keeps(ORDER)),
            (SHARES, |_, world| world.keeps(SHARES)),
            (CLASSES, |_, world| world.keeps(CLASSES)),
            (AGED, |_, world| world.keeps(AGED)),
            (PLACES, |_, world| world.keeps(PLACES)),
            (FAIR, |_, world| world.keeps(FAIR)),
            (RELEASED, |_, world| !world.has_revived()),
            (GOOD, |_, world| world.keeps(GOOD)),
            (PROMPT, |_, world| world.keeps(PROMPT)),
            (DONE, |_, world| world.keeps(DONE)),
            (SERVED, |_, world| {
                !world.messages.is_empty() || world.settles()
            }),
            (BESIDE, |_, world| {
                !world.messages.is_empty() || world.settles_beside()
            }),
        ];
        all.into_iter()
            .map(|(name, holds)| Property::always(name, holds))
            .collect()
    }

    pub(super) fn sometimes(&self) -> Vec<Property<Self>> {
        let (rules, seats) = (&self.rules, &self.rules.seats);
        let same = seats.windows(2).all(|two| two[0].ttl == two[1].ttl);
        let queued: Named<H> = ("a waiter is in the queue", |_, world| {
            world.rules.tokens().any(|token| world.waits(token))
        });
        let mut all = vec![queued];
        if rules.lines() > 1 {
            all.push(("a push makes a holder", |_, world| {
                world.held().any(|held| held.by_push)
            }));
            all.push(("a grant expires before it is received", |_, world| {
                let unknown = |token: usize| {
                    !world.waits(token) && !world.server.is_held(&world.rules, token)
                };
                let pushed = |message: &Message| matches!(message.what, What::Push(_));
                world
                    .messages
                    .iter()
                    .any(|message| pushed(message) && unknown(message.token))
            }));
        }
        if seats.len() > rules.lines() && same {
            all.push(("a lease is handed on within a process", |_, world| {
                world
                    .held()
                    .any(|held| world.rules.seat_of(held.token) != held.seat)
            }));
        }
        if rules.faults.crashes > 0 {
            all.push(("a holder follows a crashed one", |_, world| {
                world.crashes < world.rules.faults.crashes && world.believed_weight() > 0
            }));
        }
        if seats
            .windows(3)
            .any(|three| three[0].flow == three[1].flow && three[2].flow > three[1].flow)
        {
            all.push(("a flow passes a waiter of another one", |_, world| {
                world.server.seen.passed.iter().any(|passed| *passed != 0)
            }));
        }
        if rules.aging > 0 && seats.len() > 2 {
            all.push(("a lower class goes first", |_, world| {
                world.server.seen.aged
            }));
        }
        if rules.newest > 0 && seats.len() > 2 {
            all.push(("a newer waiter goes first", |_, world| {
                world.server.seen.newest
            }));
        }
        if rules.capacity > 1 {
            all.push(("two hold at the same time", |_, world| {
                world.beliefs().count() == 2
            }));
        }
        all.into_iter()
            .map(|(name, is_so)| Property::sometimes(name, is_so))
            .collect()
    }
}

impl<H: Modelled> World<H> {
    fn waits(&self, token: usize) -> bool {
        self.server.state.queue.contains(self.rules.name(token))
    }

    /// Returns whether no violation of a property was recorded.
    pub(super) fn keeps(&self, property: &str) -> bool {
        !self.seen.broken.0.contains(property) && !self.server.seen.broken.0.contains(property)
    }

    /// Returns the leases of all lines, whether valid by their clocks or not.
    fn held(&self) -> impl Iterator<Item = &Held> {
        self.clients
            .iter()
            .filter_map(|client| client.held.as_ref())
    }

    /// Returns the weight of all holders whose leases are valid by their clocks.
    fn believed_weight(&self) -> i64 {
        self.beliefs()
            .map(|(held, _)| self.rules.seats[held.seat].weight)
            .sum()
    }

    fn is_covered(&self) -> bool {
        self.beliefs().all(|(held, validity)| {
            let lease = self
                .server
                .state
                .holders
                .held(self.rules.name(held.token), self.server.now);
            lease.is_some_and(|(expiry, _)| {
                self.left(validity.until()) * TICK <= expiry - self.server.now
            })
        })
    }

    fn is_bounded(&self) -> bool {
        let is_bounded = |held: &Held, until| self.left(until) <= self.rules.of(held.token).ttl;
        self.beliefs()
            .all(|(held, validity)| is_bounded(held, validity.until()))
    }

    /// Returns whether a released token holds or waits.
    fn has_revived(&self) -> bool {
        let released = |token: &usize| self.server.released & (1 << token) != 0;
        let revived = |token: usize| self.server.is_held(&self.rules, token) || self.waits(token);
        self.rules.tokens().filter(released).any(revived)
    }
}
