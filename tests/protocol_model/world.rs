//! Server, askers and network: what can happen, and what becomes of it.

use std::array;

use stateright::{Model, Property, Representative};

use crate::asker::{Asker, Call, Phase, Request};
use crate::properties::{always, sometimes};
use crate::rules::{ROOM, Rules};
use crate::server::{Granted, Key};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    pub(crate) key: Key,
    pub(crate) askers: [Asker; ROOM],
}

/// The number is the asker's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Tick,
    /// Sends an acquire.
    Asks(usize),
    /// Sends the acquire again.
    Resends(usize),
    /// Sends a beat or a renewal.
    Sends(usize),
    /// Awaits the answer to a beat or a renewal no more.
    Abandons(usize),
    /// Gives up, or is done.
    Leaves(usize),
    Crashes(usize),
    /// The server executes the call whose answer is awaited.
    Executes(usize),
    Receives(usize),
    /// The server executes a request whose answer nobody awaits.
    ExecutesLate(usize, Request),
    Loses(usize, Request),
    /// A push arrives.
    Hears(usize),
    LosesPush(usize),
}

/// The model, as the checker sees it.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) rules: Rules,
    pub(crate) look_for: LookFor,
}

/// Witnesses are so many that to look for both at once takes longer than to look twice.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LookFor {
    Violations,
    Witnesses,
}

impl Model for Protocol {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![World { key: Key::new(&self.rules), askers: [Asker::new(); ROOM] }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        events.push(Event::Tick);
        for who in 0..self.rules.askers {
            world.of_own_accord(&self.rules, who, events);
            world.messages(&self.rules, who, events);
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        Some(world.after(&self.rules, event))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        match self.look_for {
            LookFor::Violations => always(),
            LookFor::Witnesses => sometimes(&self.rules),
        }
    }
}

/// Askers of one weight can be told apart by nothing, so it does not matter which of them is which.
impl Representative for World {
    fn representative(&self) -> Self {
        let mut rows: [_; ROOM] = array::from_fn(|who| (self.key.tokens[who], self.askers[who]));
        rows.sort_unstable();
        Self { key: self.key.with(rows.map(|(token, _)| token)), askers: rows.map(|(_, asker)| asker) }
    }
}

/// What can happen.
impl World {
    fn of_own_accord(&self, rules: &Rules, who: usize, events: &mut Vec<Event>) {
        let asker = &self.askers[who];
        match asker.phase {
            Phase::Idle => events.push(Event::Asks(who)),
            Phase::Asking if rules.faults.resends && !asker.late.has(Request::Acquire) => {
                events.push(Event::Resends(who));
            }
            Phase::Waiting { .. } | Phase::Holding { .. } if asker.call == Call::None => {
                events.push(Event::Sends(who));
            }
            Phase::Waiting { .. } | Phase::Holding { .. } if rules.faults.repeats => {
                events.push(Event::Abandons(who));
            }
            _ => {}
        }
        if asker.request().is_some() {
            events.push(Event::Leaves(who));
            if rules.faults.crashes {
                events.push(Event::Crashes(who));
            }
        }
    }

    fn messages(&self, rules: &Rules, who: usize, events: &mut Vec<Event>) {
        let asker = &self.askers[who];
        match asker.call {
            Call::None => {}
            Call::Sent { .. } => events.push(Event::Executes(who)),
            Call::Answered(_) => events.push(Event::Receives(who)),
        }
        for request in Request::ALL.into_iter().filter(|&request| asker.late.has(request)) {
            events.push(Event::ExecutesLate(who, request));
            if rules.faults.losses {
                events.push(Event::Loses(who, request));
            }
        }
        // A push that overtakes the first answer waits for it: there is nothing yet to reckon with.
        if asker.push.is_some() && asker.phase != Phase::Asking {
            events.push(Event::Hears(who));
        }
        if asker.push.is_some() && rules.faults.losses {
            events.push(Event::LosesPush(who));
        }
    }
}

/// What becomes of it.
impl World {
    pub(crate) fn after(mut self, rules: &Rules, event: Event) -> Self {
        match event {
            Event::Tick => self.tick(rules),
            Event::Asks(who) => self.askers[who].ask(),
            Event::Resends(who) => {
                self.askers[who].abandon();
                self.askers[who].send();
            }
            Event::Sends(who) => self.askers[who].send(),
            Event::Abandons(who) => self.askers[who].abandon(),
            Event::Leaves(who) => self.askers[who].leave(),
            Event::Crashes(who) => self.askers[who].crash(),
            Event::Executes(who) => self.execute(rules, who),
            Event::Receives(who) => {
                if let Call::Answered(answer) = self.askers[who].call {
                    self.askers[who].receive(answer);
                }
            }
            Event::ExecutesLate(who, request) => self.execute_late(rules, who, request),
            Event::Loses(who, request) => self.askers[who].late.take(request),
            Event::Hears(who) => self.askers[who].hear(rules),
            Event::LosesPush(who) => self.askers[who].push = None,
        }
        self
    }

    fn tick(&mut self, rules: &Rules) {
        self.key.tick();
        for asker in &mut self.askers {
            asker.tick(rules);
        }
    }

    fn execute(&mut self, rules: &Rules, who: usize) {
        if let (Call::Sent { age }, Some(request)) = (self.askers[who].call, self.askers[who].request()) {
            let (verdict, granted) = match request {
                Request::Acquire => self.key.acquire(rules, who),
                Request::Renewal => self.key.renew(rules, who),
                _ => self.key.beat(rules, who),
            };
            self.askers[who].answer(rules, age, verdict);
            self.publish(rules, granted);
        }
    }

    fn execute_late(&mut self, rules: &Rules, who: usize, request: Request) {
        self.askers[who].late.take(request);
        let granted = match request {
            Request::Acquire => self.key.acquire(rules, who).1,
            Request::Renewal => self.key.renew(rules, who).1,
            Request::Beat => self.key.beat(rules, who).1,
            Request::Release => self.key.release(rules, who),
        };
        self.publish(rules, granted);
    }

    fn publish(&mut self, rules: &Rules, granted: Granted) {
        for (asker, granted) in self.askers.iter_mut().zip(granted) {
            if granted {
                asker.publish(rules);
            }
        }
    }
}
