//! No waiter waits forever. Whatever failed before: once no message is in flight and nothing more fails, every waiter
//! is served within a bounded time. No new arrival is needed for that.

use crate::lease::model::Modelled;
use crate::lease::model::server::Verb;
use crate::lease::model::world::{Event, World};
use crate::lease::process::entry::Stage;

impl<H: Modelled> World<H> {
    /// Returns whether all waiters that are polled are served if every message arrives at once and holders release
    /// soon.
    pub(super) fn settles(&self) -> bool {
        self.serves_all(false)
    }

    /// The same for waiters that fit beside the holders, while the holders keep their leases.
    pub(super) fn settles_beside(&self) -> bool {
        let of = |seat: usize| self.rules.seats[seat];
        let holding = self.beliefs().map(|(held, _)| of(held.seat));
        let waiting = self.waiting.iter().map(|seat| of(*seat));
        let weight: i64 = holding.chain(waiting).map(|seat| seat.weight).sum();
        weight > self.rules.capacity || self.stalled != 0 || self.serves_all(true)
    }

    fn serves_all(&self, keeps: bool) -> bool {
        let waits = |world: &Self| world.waiting.iter().any(|seat| !world.is_stalled(*seat));
        if !waits(self) {
            return true;
        }
        let (longest, rules) = (
            self.rules
                .seats
                .iter()
                .map(|seat| seat.ttl)
                .max()
                .unwrap_or(0),
            &self.rules,
        );
        // At worst, a crashed process has a lease, and each other place is dead or its lease is not accepted.
        let patience = 2 * longest + 2 * rules.grant.max(rules.alive);
        let mut world = self.clone();
        for _ in 0..patience {
            world = world.serve(keeps);
            if !waits(&world) {
                return true;
            }
            world = world.after(Event::Tick);
        }
        false
    }

    /// Lets all lines send their calls and receive the replies, until there are no more effects.
    fn serve(mut self, keeps: bool) -> Self {
        let mut asked = 0_u32;
        for _ in 0..200 {
            let Some(event) = self.next(keeps, &mut asked) else {
                break;
            };
            self = self.after(event);
        }
        self
    }

    fn next(&self, keeps: bool, asked: &mut u32) -> Option<Event> {
        let mut messages = Vec::new();
        for (at, message) in self.messages.iter().enumerate() {
            self.of_message(at, message, &mut messages);
        }
        if let Some(event) = messages
            .into_iter()
            .find(|event| !matches!(event, Event::Resends(_)))
        {
            return Some(event);
        }
        (0..self.clients.len()).find_map(|line| self.of_line_in_calm(line, keeps, asked))
    }

    fn of_line_in_calm(&self, line: usize, keeps: bool, asked: &mut u32) -> Option<Event> {
        let client = &self.clients[line];
        let mut once = |token: usize, verb: Verb| {
            let bit = 1 << (2 * token + usize::from(verb == Verb::Renew));
            (std::mem::replace(asked, *asked | bit) & bit) == 0
        };
        if let Some(held) = &client.held {
            if self.believed(line).is_none() {
                return Some(Event::Ends(line));
            }
            if self.is_due_back(line) {
                return Some(Event::Due(line));
            }
            if !held.is_offered && !keeps {
                let completes = self.rules.faults.completes;
                return Some(if completes {
                    Event::Completes(line)
                } else {
                    Event::Ends(line)
                });
            }
            if self.is_renewed(held) {
                return once(held.token, Verb::Renew).then_some(Event::Renews(line));
            }
        }
        let (token, entry) = client.entry()?;
        match entry.stage {
            Stage::Acquiring { .. } if self.is_abandoned(line) => Some(Event::Due(line)),
            Stage::Acquiring { .. } => Some(Event::Fails(line)),
            Stage::Queued { .. } => once(token, Verb::Heartbeat).then_some(Event::Heartbeats(line)),
            Stage::Held(_) => None,
        }
    }
}
