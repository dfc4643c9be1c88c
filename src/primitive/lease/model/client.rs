//! What a process does for a line of waiters, like `granting`, `handover`, `heartbeats` and `renewals`. It uses the
//! crate's own [`Anchor`], [`Belief`] and [`Line`].

use tokio::time::Instant;

use super::super::belief::{Anchor, Belief, Drift};
use super::super::granting::By;
use super::super::key_state::Standing;
use super::super::line::Line;
use super::super::table::Stage;
use super::Modelled;
use super::rules::{Flaw, TICK, ticks};
use super::server::Verb;
use super::world::{Message, What, World};
use crate::store::News;

/// A line in a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    /// How many tokens the line has used.
    pub(super) asks: usize,
    pub(super) entry: Option<Entry>,
    pub(super) held: Option<Held>,
    pub(super) crashed: bool,
}

/// The acquire of a line.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) token: usize,
    pub(super) stage: Stage,
    pub(super) line: Line<usize>,
    /// The seat whose future sends the call, until it is answered.
    pub(super) driver: Option<usize>,
    pub(super) twice: bool,
    pub(super) early: Option<News>,
}

/// The lease that a seat holds.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) token: usize,
    pub(super) seat: usize,
    pub(super) belief: Belief,
    pub(super) fence: i64,
    pub(super) twice: bool,
    /// Since when it is offered, if its waiter has not accepted it.
    pub(super) offered: Option<Instant>,
}

const DRIFT: Drift = Drift(0.0);

impl<H: Modelled> World<H> {
    /// Returns whether a seat can arrive.
    pub(super) fn may_come(&self, seat: usize) -> bool {
        let of = self.rules.seats[seat];
        let client = &self.clients[of.line];
        !client.crashed && (client.entry.is_some() || client.asks < self.rules.asks)
    }

    pub(super) fn comes(&mut self, seat: usize) {
        self.came |= 1 << seat;
        self.waiting.push(seat);
        let line = self.rules.seats[seat].line;
        if let Some(entry) = &mut self.clients[line].entry {
            entry.line.join(seat);
            return;
        }
        let entry = self.line_of(seat);
        let token = entry.token;
        self.clients[line].entry = Some(entry);
        self.clients[line].asks += 1;
        self.call(token, Verb::Acquire);
    }

    /// Returns whether a message that has arrived is handled. A waiter that sends its own call handles the reply
    /// when it is polled.
    pub(super) fn is_heard(&self, message: &Message) -> bool {
        let entry = &self.clients[self.rules.of(message.token).line].entry;
        let is_reply = matches!(message.what, What::Reply { verb: Verb::Acquire, .. });
        !entry.as_ref().is_some_and(|entry| is_reply && self.is_abandoned(entry))
    }

    /// Returns whether the future that sends a line's call is not polled.
    pub(super) fn is_abandoned(&self, entry: &Entry) -> bool {
        entry.stage == Stage::Asking && entry.driver.is_some_and(|driver| self.is_stalled(driver))
    }

    pub(super) fn receive(&mut self, Message { token, what }: Message) {
        let line = self.rules.of(token).line;
        match what {
            What::Push(news) => self.heard(line, token, news),
            What::Reply { verb, mut anchor, standing, twice } => {
                if self.rules.has(Flaw::AnchorAtArrival) {
                    anchor.sent = self.local;
                }
                match verb {
                    Verb::Acquire => self.answered(line, token, anchor, standing, twice),
                    Verb::Renew => self.renewed(line, token, anchor, standing),
                    Verb::Heartbeat => self.stands(line, token, anchor, standing),
                    Verb::Release | Verb::Withdraw | Verb::Complete => {}
                }
            }
            What::Call { .. } => {}
        }
    }

    fn entry(&mut self, line: usize, token: usize) -> Option<&mut Entry> {
        self.clients[line].entry.as_mut().filter(|entry| entry.token == token)
    }

    fn answered(&mut self, line: usize, token: usize, anchor: Anchor, standing: Standing, twice: bool) {
        let forgets = self.rules.has(Flaw::TwiceForgotten);
        let Some(entry) = self.entry(line, token) else { return };
        entry.twice |= twice && !forgets;
        match standing {
            Standing::Held { expiry, fence } => self.granted(line, token, By::Answer(anchor), expiry, fence),
            Standing::Queued { .. } => {
                (entry.stage, entry.driver) = (Stage::Queued(anchor), None);
                if let Some(early) = entry.early.take() {
                    self.heard(line, token, early);
                }
            }
            Standing::Done => self.drop_line(line),
            Standing::Refused { .. } | Standing::Withdrawn => self.place_lost(line, token),
        }
    }

    fn heard(&mut self, line: usize, token: usize, news: News) {
        if self.rules.has(Flaw::HolderAnswersPush) && self.clients[line].held.is_some() {
            return self.send_off(token, Verb::Release);
        }
        match news {
            News::Granted { expiry, fence } => self.granted(line, token, By::Grant(None), expiry, fence),
            News::Gone => self.place_lost(line, token),
            News::Told(_) => self.drop_line(line),
        }
    }

    fn stands(&mut self, line: usize, token: usize, anchor: Anchor, standing: Standing) {
        let Some(entry) = self.entry(line, token).filter(|entry| matches!(entry.stage, Stage::Queued(_)))
        else {
            return;
        };
        match standing {
            Standing::Held { expiry, fence } => {
                self.granted(line, token, By::Grant(Some(anchor)), expiry, fence)
            }
            Standing::Queued { .. } => entry.stage = Stage::Queued(anchor),
            Standing::Refused { .. } | Standing::Withdrawn | Standing::Done => self.place_lost(line, token),
        }
    }

    /// Returns until when a lease is certainly valid. `asked`: whether the anchor is the call that returned the
    /// lease.
    pub(super) fn until(&self, anchor: Anchor, expiry: i64, ttl: i64, asked: bool) -> Instant {
        let left = ticks((expiry - anchor.now).max(0) / TICK);
        if self.rules.has(Flaw::ReplyValidFromArrival) && asked {
            return self.local + DRIFT.sure(left);
        }
        if self.rules.has(Flaw::PushValidFromArrival) && !asked {
            return self.local + DRIFT.sure(ticks(self.rules.stands(ttl)));
        }
        if self.rules.has(Flaw::BeliefIsNotCut) {
            return anchor.sent + DRIFT.sure(left);
        }
        if asked || self.rules.has(Flaw::PushCutAtAnchor) {
            return anchor.until(expiry, ticks(ttl), DRIFT);
        }
        anchor.until_granted(expiry, ticks(self.rules.stands(ttl)), self.local, DRIFT)
    }

    fn granted(&mut self, line: usize, token: usize, by: By, expiry: i64, fence: i64) {
        let ttl = self.rules.of(token).ttl;
        let (local, late_ok) = (self.local, self.rules.has(Flaw::LateGrantIsTaken));
        let at_once = expiry - self.server.now == self.rules.stands(ttl) * TICK;
        let jumped = self.rules.faults.jump != 0 && !self.jumps;
        let Some(entry) = self.entry(line, token) else { return };
        let anchor = match (by, entry.stage) {
            (_, Stage::Holding) => return,
            (By::Answer(anchor) | By::Grant(Some(anchor)), _) | (By::Grant(None), Stage::Queued(anchor)) => {
                anchor
            }
            (By::Grant(None), Stage::Asking) => {
                entry.early = Some(News::Granted { expiry, fence });
                return;
            }
        };
        let asked = by != By::Grant(None);
        let until = self.until(anchor, expiry, ttl, asked);
        let taken =
            late_ok.then(|| Belief::granted(until, until.checked_sub(ticks(1)).unwrap_or(until))).flatten();
        let Some(belief) = Belief::granted(until, local).or(taken) else {
            self.seen.missed |= at_once && !asked && !jumped && self.is_prompt(anchor);
            return self.ask_for_line(line, Some(false));
        };
        self.forget_calls(token);
        let seats = &self.rules.seats;
        let Some(entry) = self.clients[line].entry.as_mut() else { return };
        (entry.stage, entry.driver) = (Stage::Holding, None);
        let fits = entry.line.front().is_some_and(|seat| seats[*seat].ttl == ttl);
        let seat = if fits { entry.line.granted(local) } else { None };
        let twice = entry.twice;
        let Some(seat) = seat else { return self.ask_for_line(line, Some(false)) };
        self.offer(line, Held { token, seat, belief, fence, twice, offered: None });
    }

    /// Returns whether the call of an anchor took no time.
    fn is_prompt(&self, anchor: Anchor) -> bool {
        let (server, local) = (self.server.now - anchor.now, self.local.duration_since(anchor.sent));
        ticks(server / TICK) == local
    }

    pub(super) fn offer(&mut self, line: usize, held: Held) {
        let seat = held.seat;
        let process = self.rules.seats[seat].process;
        let (seats, weight) = (&self.rules.seats, self.rules.seats[seat].weight);
        let first = self.waiting.iter().find(|other| seats[**other].process == process);
        self.seen.unfair |= first.is_some_and(|first| *first != seat);
        self.waiting.retain(|other| *other != seat);
        let mut held = Held { offered: self.is_stalled(seat).then_some(self.local), ..held };
        self.seen.late |= !held.belief.holds(self.local);
        // A shared holder has the fence of the exclusive holder before it.
        let shares = weight < self.rules.capacity;
        // After a jump forward, a waiter that was granted a lease later may receive it first.
        let fell = held.fence < self.seen.fence || (held.fence == self.seen.fence && !shares);
        self.seen.fence_fell |= fell && self.rules.faults.jump <= 0;
        self.seen.fence = self.seen.fence.max(held.fence);
        self.clients[line].held = Some(held);
    }

    fn place_lost(&mut self, line: usize, token: usize) {
        if self.entry(line, token).is_some_and(|entry| entry.stage != Stage::Holding) {
            self.ask_for_line(line, None);
        }
    }

    /// Ends a line: all its waiters learn that there is nothing left to do, or that the call has failed.
    fn drop_line(&mut self, line: usize) {
        if let Some(entry) = self.clients[line].entry.take() {
            self.waiting.retain(|seat| !entry.line.iter().any(|other| other == seat));
            self.forget_calls(entry.token);
        }
    }

    /// Releases a token. `withdrawn`: its acquire may run later.
    pub(super) fn give_back(&mut self, token: usize, withdrawn: bool) {
        let verb = if withdrawn { Verb::Withdraw } else { Verb::Release };
        self.send_off(token, verb);
    }

    /// Lets a line ask for a new place. `back`: release its token first; `true` if its acquire may run later.
    pub(super) fn ask_for_line(&mut self, line: usize, back: Option<bool>) {
        let Some(mut entry) = self.clients[line].entry.take() else { return };
        self.forget_calls(entry.token);
        if let Some(asking) = back {
            self.give_back(entry.token, asking || entry.twice);
        }
        let Some(front) = entry.line.front().copied() else { return };
        let asks = self.clients[line].asks;
        if asks == self.rules.asks || self.again == 0 {
            // The limit of the setting is reached.
            self.waiting.retain(|seat| !entry.line.iter().any(|other| other == seat));
            return;
        }
        self.again -= 1;
        self.clients[line].asks += 1;
        entry.token = self.rules.token(front, asks);
        (entry.stage, entry.driver, entry.twice, entry.early) = (Stage::Asking, None, false, None);
        let token = entry.token;
        self.clients[line].entry = Some(entry);
        self.call(token, Verb::Acquire);
    }

    /// Fails an acquire: the waiter that sent it receives the error; a line asks again.
    pub(super) fn fails(&mut self, line: usize) {
        let forgets = self.rules.has(Flaw::RetryForgotten);
        let Some(entry) = &mut self.clients[line].entry else { return };
        let token = entry.token;
        if entry.driver.is_some() {
            self.drop_line(line);
            return self.give_back(token, true);
        }
        entry.twice |= !forgets;
        self.forget_calls(token);
        self.call(token, Verb::Acquire);
    }

    pub(super) fn leaves(&mut self, seat: usize) {
        let line = self.rules.seats[seat].line;
        self.waiting.retain(|other| *other != seat);
        let Some(entry) = &mut self.clients[line].entry else { return };
        entry.line.leave(|other| *other == seat);
        let asking = match entry.stage {
            Stage::Holding => return,
            Stage::Queued(_) => false,
            Stage::Asking => true,
        };
        if entry.line.is_empty() || (asking && entry.driver == Some(seat)) {
            self.ask_for_line(line, Some(asking));
        }
    }

    /// Handles a line whose sending future is not polled. That waiter asks again when it is polled.
    pub(super) fn abandons(&mut self, line: usize) {
        let Some(entry) = &mut self.clients[line].entry else { return };
        if let Some(driver) = entry.driver.take() {
            entry.line.leave(|other| *other == driver);
            self.waiting.retain(|other| *other != driver);
            self.ask_for_line(line, Some(true));
        }
    }
}
