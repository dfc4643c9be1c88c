//! Those who wait for leases of one key, in process: the twin of `lua/lib/queue.lua`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Tickets of the next rank lie this much higher.
pub(crate) const LIFT: i64 = 1 << 52;

/// Who waits, in the order of tickets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    order: BTreeMap<i64, Arc<str>>,
    places: HashMap<Arc<str>, Place>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    ticket: i64,
    /// Until when it counts as alive, µs.
    alive: i64,
}

impl Queue {
    pub(crate) fn len(&self) -> i64 {
        self.order.len() as i64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn contains(&self, token: &str) -> bool {
        self.places.contains_key(token)
    }

    pub(crate) fn first(&self) -> Option<&Arc<str>> {
        self.order.values().next()
    }

    /// The first of rank 1.
    pub(crate) fn first_of_second_rank(&self) -> Option<&Arc<str>> {
        self.order.range(LIFT..).next().map(|(_, token)| token)
    }

    /// How many stand before a token.
    pub(crate) fn position(&self, token: &str) -> i64 {
        self.places.get(token).map_or(0, |place| self.order.range(..place.ticket).count() as i64)
    }

    /// How many go before one of a rank.
    pub(crate) fn ahead(&self, rank: i64) -> i64 {
        self.order.range(..(rank + 1) * LIFT).count() as i64
    }

    /// Puts a token at the end of its rank.
    pub(crate) fn line_up(&mut self, token: Arc<str>, rank: i64, now: i64, life: i64) {
        let last = self.order.range(rank * LIFT..(rank + 1) * LIFT).next_back();
        let ticket = last.map_or(0, |(ticket, _)| ticket + 1).max(rank * LIFT + now);
        self.order.insert(ticket, Arc::clone(&token));
        self.places.insert(token, Place { ticket, alive: now + life });
    }

    /// Says that a token is alive; whether it waits at all.
    pub(crate) fn beat(&mut self, token: &str, until: i64) -> bool {
        self.places.get_mut(token).map(|place| place.alive = until).is_some()
    }

    /// Whether a token waited, which is over.
    pub(crate) fn leave(&mut self, token: &str) -> bool {
        let place = self.places.remove(token);
        place.is_some_and(|place| self.order.remove(&place.ticket).is_some())
    }

    pub(crate) fn drop_dead(&mut self, now: i64) {
        let dead = |(token, place): (&Arc<str>, &Place)| (place.alive <= now).then(|| Arc::clone(token));
        for token in self.places.iter().filter_map(dead).collect::<Vec<_>>() {
            self.leave(&token);
        }
    }
}
