//! What a process does with a lease that it holds.

use std::sync::Arc;

use super::super::belief::{Anchor, Belief};
use super::super::key_state::Standing;
use super::Modelled;
use super::client::{Entry, Held};
use super::rules::{Flaw, ticks};
use super::server::Verb;
use super::world::World;

impl<H: Modelled> World<H> {
    /// Returns whether a lease is renewed: only after its waiter accepted it.
    pub(super) fn is_renewed(&self, held: &Held) -> bool {
        held.offered.is_none() || self.rules.has(Flaw::OfferIsRenewed)
    }

    /// Returns whether an offered lease is taken back: after half its ttl, but not before the next tick.
    pub(super) fn is_due_back(&self, held: &Held) -> bool {
        let ttl = self.rules.seats[held.seat].ttl;
        let due = held.offered.is_some_and(|since| self.local >= since + ticks(ttl) / 2);
        due && !self.rules.has(Flaw::OfferIsRenewed)
    }

    /// Ends the lease of a line. Its waiters wait for it no longer.
    pub(super) fn is_over(&mut self, line: usize) {
        let Some(held) = self.clients[line].held.take() else { return };
        self.forget_calls(held.token);
        self.give_back(held.token, held.twice);
        self.ask_for_line(line, None);
    }

    pub(super) fn renewed(&mut self, line: usize, token: usize, anchor: Anchor, standing: Standing) {
        let rules = Arc::clone(&self.rules);
        let (local, ttl) = (self.local, rules.of(token).ttl);
        let grown = self.clients[line].held.as_ref().map(|held| held.belief.until());
        let until = match standing {
            Standing::Held { expiry, .. } => Some(self.until(anchor, expiry, ttl, true)),
            _ => None,
        };
        let Some(held) = self.clients[line].held.as_mut().filter(|held| held.token == token) else { return };
        let until = if rules.has(Flaw::BeliefOnlyGrows) { until.max(grown) } else { until };
        if !until.is_some_and(|until| held.belief.renewed(anchor.sent, until, local)) {
            held.belief.end();
            self.is_over(line);
        }
    }

    /// The holder releases: the lease goes to the next waiter in line, or to the store.
    pub(super) fn releases(&mut self, line: usize) {
        let rules = Arc::clone(&self.rules);
        let local = self.local;
        let Some(mut held) = self.clients[line].held.take() else { return };
        let ttl = rules.of(held.token).ttl;
        let enough = ticks(rules.grant.min(ttl)) / 2;
        let is_good = held.belief.holds(local) && held.belief.until() - local >= enough;
        let Some(entry) = &mut self.clients[line].entry else { return };
        let front = entry.line.front().copied();
        let fits = is_good && front.is_some_and(|front| rules.seats[front].ttl == ttl);
        match if fits { entry.line.hand_over(local) } else { None } {
            Some(seat) => {
                let fence = held.fence + i64::from(!rules.has(Flaw::HandOnSameFence));
                self.offer(line, Held { seat, fence, ..held });
            }
            None => {
                self.forget_calls(held.token);
                self.ask_for_line(line, Some(false));
            }
        }
    }

    /// The holder enters an outcome, and releases its lease.
    pub(super) fn completes(&mut self, line: usize) {
        let Some(held) = self.clients[line].held.take() else { return };
        self.forget_calls(held.token);
        self.send_off(held.token, Verb::Complete);
        let Some(Entry { line: waiting, .. }) = self.clients[line].entry.take() else { return };
        self.waiting.retain(|seat| !waiting.iter().any(|other| other == seat));
    }

    /// Returns the lease that a line believes in.
    pub(super) fn believed(&self, line: usize) -> Option<(&Held, &Belief)> {
        let held = self.clients[line].held.as_ref()?;
        held.belief.clone().holds(self.local).then_some((held, &held.belief))
    }
}
