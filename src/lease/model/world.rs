//! The world: the server, the lines of waiters and the network; the events that can happen, and their effects.

use std::sync::Arc;

use tokio::time::Instant;

use crate::lease::key_state::Position;
use crate::lease::model::client::Client;
use crate::lease::model::properties::Broken;
use crate::lease::model::rules::{Flaw, Rules, TICK, ticks};
use crate::lease::model::server::{Server, Verb};
use crate::lease::process::entry::Stage;
use crate::store::notifier::PushKind;
use crate::store::validity::Anchor;

#[derive(Clone, Debug)]
pub(super) struct World<H> {
    pub(super) rules: Arc<Rules>,
    pub(super) server: Server<H>,
    pub(super) clients: Vec<Client>,
    /// All messages in flight.
    pub(super) messages: Vec<Message>,
    /// The clock of all processes.
    pub(super) local: Instant,
    /// The seats that wait, in the order of arrival.
    pub(super) waiting: Vec<usize>,
    /// The seats that have arrived, as a set of bits.
    pub(super) came: u32,
    /// The seats that are no longer polled, as a set of bits.
    pub(super) stalled: u32,
    pub(super) seen: Seen,
    /// How often each of these may still happen.
    pub(super) again: u8,
    pub(super) crashes: u8,
    pub(super) evictions: u8,
    pub(super) jumps: bool,
}

/// Observations so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The highest fence that a holder has had.
    pub(super) fence: i64,
    pub(super) broken: Broken,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Message {
    pub(super) token: usize,
    pub(super) what: What,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum What {
    /// To the server. `sent`: when it was sent, if its reply is awaited. `twice`: a copy of it was sent too.
    /// `latest`: until when it may still run, if its time is limited.
    Call {
        verb: Verb,
        sent: Option<Instant>,
        twice: bool,
        latest: Option<Instant>,
    },
    Reply {
        verb: Verb,
        anchor: Anchor,
        standing: Position,
        twice: bool,
    },
    Push(PushKind),
}

impl What {
    fn call(verb: Verb, sent: Option<Instant>, latest: Option<Instant>) -> Self {
        Self::Call {
            verb,
            sent,
            twice: false,
            latest,
        }
    }
}

/// The number is the index of a message, a line, a seat or a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    Tick,
    /// A waiter arrives.
    Comes(usize),
    /// The server runs a call.
    Executes(usize, Verb),
    /// A reply or a push arrives.
    Receives(usize),
    /// The transport sends a call again.
    Resends(usize),
    /// The call of a line fails.
    Fails(usize),
    Heartbeats(usize),
    Renews(usize),
    /// The holder releases, also when it notices that its lease has ended.
    Ends(usize),
    Completes(usize),
    /// A waiter gives up.
    Leaves(usize),
    /// A waiter is no longer polled.
    Stalls(usize),
    /// The line handles everything that is due: an offered lease is withdrawn, or the line notices that the future that
    /// sends its call is not polled.
    Due(usize),
    Crashes(usize),
    /// The server's clock jumps.
    Jumps,
    Evicts,
    /// All messages in flight are lost.
    LosesAll,
}

impl<H: super::Modelled> World<H> {
    pub(super) fn new(rules: &Arc<Rules>) -> Self {
        Self {
            rules: Arc::clone(rules),
            server: Server::new(),
            clients: vec![Client::new(rules); rules.lines()],
            messages: Vec::new(),
            local: rules.epoch,
            waiting: Vec::new(),
            came: 0,
            stalled: 0,
            seen: Seen::default(),
            again: rules.again,
            crashes: rules.faults.crashes,
            evictions: rules.faults.evictions,
            jumps: rules.faults.jump != 0,
        }
    }

    pub(super) fn is_stalled(&self, seat: usize) -> bool {
        self.stalled & (1 << seat) != 0
    }

    /// Adds all events that can happen.
    pub(super) fn events(&self, events: &mut Vec<Event>) {
        let faults = self.rules.faults;
        events.push(Event::Tick);
        for (at, message) in self.messages.iter().enumerate() {
            self.of_message(at, message, events);
        }
        for seat in 0..self.rules.seats.len() {
            if self.came & (1 << seat) == 0 && self.may_come(seat) {
                events.push(Event::Comes(seat));
            }
            if self.waiting.contains(&seat) {
                let leaves = faults.leaves.then_some(Event::Leaves(seat));
                let stalls =
                    (faults.stalls && !self.is_stalled(seat)).then_some(Event::Stalls(seat));
                events.extend(leaves.into_iter().chain(stalls));
            }
        }
        for line in 0..self.clients.len() {
            self.of_line(line, events);
        }
        if self.jumps {
            events.push(Event::Jumps);
        }
        if self.evictions > 0 && !self.server.state.queue.is_empty() {
            events.push(Event::Evicts);
        }
        if faults.losses && !self.messages.is_empty() {
            events.push(Event::LosesAll);
        }
    }

    pub(super) fn of_message(&self, at: usize, message: &Message, events: &mut Vec<Event>) {
        match &message.what {
            What::Call {
                verb, sent, twice, ..
            } => {
                events.push(Event::Executes(at, *verb));
                // A token is never used again, so several of its releases have the same effect as one.
                if self.rules.faults.resends && *verb == Verb::Acquire && sent.is_some() && !twice {
                    events.push(Event::Resends(at));
                }
            }
            What::Reply { .. } | What::Push(_) => {
                if self.is_heard(message) {
                    events.push(Event::Receives(at));
                }
            }
        }
    }

    fn of_line(&self, line: usize, events: &mut Vec<Event>) {
        let (client, faults) = (&self.clients[line], self.rules.faults);
        // Heartbeats and renewals are sent one by one.
        let is_quiet = self.messages.is_empty();
        if let Some((token, entry)) = client.entry() {
            match entry.stage {
                Stage::Acquiring { .. } => {
                    if faults.failures && self.is_awaited(token) {
                        events.push(Event::Fails(line));
                    }
                    if self.is_abandoned(line) {
                        events.push(Event::Due(line));
                    }
                }
                Stage::Queued { .. } if is_quiet => events.push(Event::Heartbeats(line)),
                Stage::Queued { .. } | Stage::Held(_) => {}
            }
        }
        if let Some(held) = &client.held {
            if self.is_renewed(held) && is_quiet {
                events.push(Event::Renews(line));
            }
            if self.is_due_back(line) {
                events.push(Event::Due(line));
            }
            if self.believed(line).is_none() || (!held.is_offered && !faults.completes) {
                events.push(Event::Ends(line));
            }
            if !held.is_offered && faults.completes {
                events.push(Event::Completes(line));
            }
        }
        if self.crashes > 0 && (client.entry().is_some() || client.held.is_some()) {
            events.push(Event::Crashes(line));
        }
    }

    /// Returns the world after an event.
    pub(super) fn after(mut self, event: Event) -> Self {
        match event {
            Event::Tick => self.tick(),
            Event::Comes(seat) => self.comes(seat),
            Event::Executes(at, _) => self.execute(at),
            Event::Receives(at) => {
                let message = self.messages.remove(at);
                self.receive(message);
            }
            Event::Resends(at) => self.resend(at),
            Event::Fails(line) => self.fails(line),
            Event::Heartbeats(line) => {
                if let Some((token, _)) = self.clients[line].entry() {
                    self.call(token, Verb::Heartbeat);
                }
            }
            Event::Renews(line) => {
                if let Some(held) = &self.clients[line].held {
                    self.call(held.token, Verb::Renew);
                }
            }
            Event::Ends(line) => self.ends(line),
            Event::Completes(line) => self.completes(line),
            Event::Leaves(seat) => self.leaves(seat),
            Event::Stalls(seat) => self.stalled |= 1 << seat,
            Event::Due(line) => self.due(line),
            Event::Crashes(line) => self.crash(line),
            Event::Jumps => {
                self.jumps = false;
                self.server.tick(&self.rules, self.rules.faults.jump);
            }
            Event::Evicts => {
                self.evictions -= 1;
                self.server.state.queue.evict();
            }
            Event::LosesAll => self.messages.clear(),
        }
        self.prune();
        self
    }

    fn tick(&mut self) {
        self.local += ticks(1);
        self.server.tick(&self.rules, 1);
        let local = self.local;
        self.messages.retain(|message| match message.what {
            What::Call { latest, .. } => latest.is_none_or(|latest| latest >= local),
            What::Reply { .. } | What::Push(_) => true,
        });
    }

    fn execute(&mut self, at: usize) {
        let Message { token, what } = self.messages.remove(at);
        let What::Call {
            verb, sent, twice, ..
        } = what
        else {
            return;
        };
        let rules = Arc::clone(&self.rules);
        let (standing, pushes) = self.server.execute(&rules, token, verb);
        if let Some(mut sent) = sent {
            if rules.has(Flaw::AnchorAtArrival) {
                // The time is set when the reply arrives.
                sent = rules.epoch;
            }
            let anchor = Anchor {
                sent,
                now: self.server.now,
            };
            self.send(
                token,
                What::Reply {
                    verb,
                    anchor,
                    standing,
                    twice,
                },
            );
        }
        for push in pushes {
            for id in push.ids {
                let token = usize::try_from(id).unwrap_or(usize::MAX);
                self.send(token, What::Push(push.news.clone()));
            }
        }
    }

    /// Sends a call whose reply is awaited.
    pub(super) fn call(&mut self, token: usize, verb: Verb) {
        self.send(token, What::call(verb, Some(self.local), self.latest()));
    }

    /// Sends a call whose reply is not awaited.
    pub(super) fn send_off(&mut self, token: usize, verb: Verb) {
        self.send(token, What::call(verb, None, self.latest()));
    }

    /// Until when a call that is sent now may still run, if its time is limited.
    fn latest(&self) -> Option<Instant> {
        self.rules.late.map(|late| self.local + ticks(late))
    }

    /// A second copy of a message adds nothing: a message arrives at any time, if at all.
    fn send(&mut self, token: usize, what: What) {
        let message = Message { token, what };
        if !self.messages.contains(&message) {
            self.messages.push(message);
        }
    }

    /// Returns whether the reply to an acquire is awaited.
    fn is_awaited(&self, token: usize) -> bool {
        let is = |message: &Message| match message.what {
            What::Call { verb, sent, .. } => verb == Verb::Acquire && sent.is_some(),
            What::Reply { verb, .. } => verb == Verb::Acquire,
            What::Push(_) => false,
        };
        self.messages
            .iter()
            .filter(|message| message.token == token)
            .any(is)
    }

    /// Stops waiting for the replies to a token's calls. The calls may still run.
    pub(super) fn forget_calls(&mut self, token: usize) {
        let mut late = Vec::new();
        self.messages.retain(|message| {
            if message.token != token {
                return true;
            }
            let What::Call {
                verb, sent, latest, ..
            } = message.what
            else {
                return matches!(message.what, What::Push(_));
            };
            if sent.is_some() && !matches!(verb, Verb::Release | Verb::Withdraw) {
                late.push(What::call(verb, None, latest));
                return false;
            }
            true
        });
        late.into_iter().for_each(|what| self.send(token, what));
    }

    fn resend(&mut self, at: usize) {
        let Message { token, what } = &mut self.messages[at];
        if let What::Call { verb, twice, .. } = what {
            *twice = true;
            let (token, verb) = (*token, *verb);
            self.send_off(token, verb);
        }
    }

    fn crash(&mut self, line: usize) {
        self.crashes -= 1;
        let process = self.rules.process(line);
        for line in 0..self.clients.len() {
            if self.rules.process(line) != process {
                continue;
            }
            let seats = &self.rules.seats;
            self.waiting.retain(|seat| seats[*seat].line != line);
            let asks = self.clients[line].tokens.party.asks;
            self.clients[line] = Client::new(&self.rules);
            (
                self.clients[line].crashed,
                self.clients[line].tokens.party.asks,
            ) = (true, asks);
            for token in self.rules.tokens_of(line) {
                self.forget_calls(token);
            }
        }
    }

    /// Returns how many whole ticks are left until a time.
    pub(super) fn left(&self, until: Instant) -> i64 {
        let left = until.saturating_duration_since(self.local).as_micros();
        i64::try_from(left).map_or(i64::MAX, |left| (left + TICK - 1) / TICK)
    }
}

/// Converts µs to ticks.
pub(super) fn in_ticks(micros: i64) -> i64 {
    micros.div_euclid(TICK)
}
