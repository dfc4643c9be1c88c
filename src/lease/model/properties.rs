//! The properties that must always hold, and the states that must be reachable. The latter show that the former do
//! not hold just because nothing happens.

use stateright::Property;

use super::rules::TICK;
use super::world::{What, World};
use super::{Modelled, Protocol};

pub(super) const EXCLUSION: &str = "the holders that believe in their leases fit the capacity";
pub(super) const COVERED: &str = "a belief ends no later than the lease on the server";
pub(super) const BOUNDED: &str = "no belief lasts longer than the ttl";
pub(super) const FENCES: &str = "each exclusive holder has a higher fence than all before it";
pub(super) const ORDER: &str =
    "no waiter overtakes another in the queue, or all do once there have been waiters for long enough";
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
pub(super) const BESIDE: &str = "without further faults, every waiter that fits is served beside the holders";

impl<H: Modelled> Protocol<H> {
    pub(super) fn always() -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, world: &World<H>| {
                world.believed_weight() <= world.rules.capacity
            }),
            Property::always(COVERED, |_, world: &World<H>| world.is_covered()),
            Property::always(BOUNDED, |_, world: &World<H>| world.is_bounded()),
            Property::always(FENCES, |_, world: &World<H>| {
                !H::FENCED || !(world.seen.fence_fell || world.server.fence_fell)
            }),
            Property::always(ORDER, |_, world: &World<H>| !world.server.overtaken),
            Property::always(SHARES, |_, world: &World<H>| !world.server.seen.unfair),
            Property::always(CLASSES, |_, world: &World<H>| !world.server.seen.lower),
            Property::always(AGED, |_, world: &World<H>| !world.server.seen.starved),
            Property::always(PLACES, |_, world: &World<H>| !world.server.displaced),
            Property::always(FAIR, |_, world: &World<H>| !world.seen.unfair),
            Property::always(RELEASED, |_, world: &World<H>| !world.has_revived()),
            Property::always(GOOD, |_, world: &World<H>| !world.seen.late),
            Property::always(PROMPT, |_, world: &World<H>| !world.seen.missed),
            Property::always(DONE, |_, world: &World<H>| !world.server.held_after),
            Property::always(SERVED, |_, world: &World<H>| !world.messages.is_empty() || world.settles()),
            Property::always(BESIDE, |_, world: &World<H>| {
                !world.messages.is_empty() || world.settles_beside()
            }),
        ]
    }

    pub(super) fn sometimes(&self) -> Vec<Property<Self>> {
        let (rules, faults) = (&self.rules, self.rules.faults);
        let mut all = vec![Property::sometimes("a waiter is in the queue", |_, world: &World<H>| {
            world.rules.tokens().any(|token| world.waits(token))
        })];
        if rules.lines() > 1 {
            all.push(Property::sometimes("a push makes a holder", |_, world: &World<H>| {
                world.clients.iter().any(|client| client.held.as_ref().is_some_and(|held| held.by_push))
            }));
            all.push(Property::sometimes("a grant expires before it is received", |_, world: &World<H>| {
                let unknown =
                    |token: usize| !world.waits(token) && !world.server.is_held(&world.rules, token);
                let pushed = world.messages.iter().filter(|message| matches!(message.what, What::Push(_)));
                pushed.clone().any(|message| unknown(message.token))
            }));
        }
        let same = rules.seats.windows(2).all(|two| two[0].ttl == two[1].ttl);
        if rules.seats.len() > rules.lines() && same {
            all.push(Property::sometimes("a lease is handed on within a process", |_, world: &World<H>| {
                let held = world.clients.iter().filter_map(|client| client.held.as_ref());
                held.clone().any(|held| world.rules.seat_of(held.token) != held.seat)
            }));
        }
        if faults.crashes > 0 {
            all.push(Property::sometimes("a holder follows a crashed one", |_, world: &World<H>| {
                world.crashes < world.rules.faults.crashes && world.believed_weight() > 0
            }));
        }
        if rules.seats.windows(3).any(|seats| seats[0].flow == seats[1].flow && seats[2].flow > seats[1].flow)
        {
            all.push(Property::sometimes("a flow passes a waiter of another one", |_, world: &World<H>| {
                world.server.seen.passed.iter().any(|passed| *passed != 0)
            }));
        }
        if rules.aging > 0 && rules.seats.len() > 2 {
            all.push(Property::sometimes("a lower class goes first", |_, world: &World<H>| {
                world.server.seen.aged
            }));
        }
        if rules.newest > 0 && rules.seats.len() > 2 {
            all.push(Property::sometimes("a newer waiter goes first", |_, world: &World<H>| {
                world.server.seen.newest
            }));
        }
        if rules.capacity > 1 {
            all.push(Property::sometimes("two hold at the same time", |_, world: &World<H>| {
                (0..world.clients.len()).filter(|line| world.believed(*line).is_some()).count() == 2
            }));
        }
        all
    }
}

impl<H: Modelled> World<H> {
    fn waits(&self, token: usize) -> bool {
        self.server.state.queue.contains(self.rules.name(token))
    }

    /// Returns the weight of all holders that believe in their leases.
    fn believed_weight(&self) -> i64 {
        let believed = (0..self.clients.len()).filter_map(|line| self.believed(line));
        believed.map(|(held, _)| self.rules.seats[held.seat].weight).sum()
    }

    fn is_covered(&self) -> bool {
        (0..self.clients.len()).filter_map(|line| self.believed(line)).all(|(held, validity)| {
            let lease = self.server.state.holders.held(self.rules.name(held.token), self.server.now);
            lease.is_some_and(|(expiry, _)| self.left(validity.until()) * TICK <= expiry - self.server.now)
        })
    }

    fn is_bounded(&self) -> bool {
        let mut believed = (0..self.clients.len()).filter_map(|line| self.believed(line));
        believed.all(|(held, validity)| self.left(validity.until()) <= self.rules.of(held.token).ttl)
    }

    /// Returns whether a released token holds or waits.
    fn has_revived(&self) -> bool {
        let released = |token: &usize| self.server.released & (1 << token) != 0;
        let revived = |token: usize| self.server.is_held(&self.rules, token) || self.waits(token);
        self.rules.tokens().filter(released).any(revived)
    }
}
