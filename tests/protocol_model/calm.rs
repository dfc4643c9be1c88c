//! Nobody waits for ever: whatever has gone wrong until the network became calm, if nothing goes wrong from then
//! on, everybody who waits is served within a bounded time, and that needs no new arrival.

use crate::asker::{Call, Late, Phase, Request};
use crate::rules::Rules;
use crate::world::{Event, World};

impl World {
    /// Whether nothing is under way.
    pub(crate) fn is_calm(&self) -> bool {
        self.askers.iter().all(|asker| {
            let under_way = asker.call != Call::None || asker.late != Late::default() || asker.push.is_some();
            asker.phase != Phase::Asking && !under_way
        })
    }

    /// Whether all who wait are served if every message arrives at once and holders are soon done.
    pub(crate) fn settles(mut self, rules: &Rules) -> bool {
        // At worst a lost release leaves a lease, and the two who stand before the last are dead, or do not take
        // what they are granted.
        let patience = rules.times.lease + 2 * rules.times.claim.max(rules.times.life);
        for _ in 0..patience {
            for who in 0..rules.askers {
                self = self.beat(rules, who).hand_over(rules);
            }
            self = self.after(rules, Event::Tick);
        }
        !self.askers.iter().any(|asker| matches!(asker.phase, Phase::Waiting { .. }))
    }

    fn beat(self, rules: &Rules, who: usize) -> Self {
        if !matches!(self.askers[who].phase, Phase::Waiting { .. }) {
            return self;
        }
        let events = [Event::Sends(who), Event::Executes(who), Event::Receives(who)];
        events.into_iter().fold(self, |world, event| world.after(rules, event))
    }

    /// Holders are done, and who is granted something hears of it, until nothing more follows.
    fn hand_over(mut self, rules: &Rules) -> Self {
        while let Some(event) = (0..rules.askers).find_map(|who| self.at_hand(who)) {
            self = self.after(rules, event);
        }
        self
    }

    fn at_hand(&self, who: usize) -> Option<Event> {
        let asker = &self.askers[who];
        if asker.push.is_some() {
            Some(Event::Hears(who))
        } else if asker.late.has(Request::Release) {
            Some(Event::ExecutesLate(who, Request::Release))
        } else if matches!(asker.phase, Phase::Holding { .. }) {
            Some(Event::Leaves(who))
        } else {
            None
        }
    }
}
