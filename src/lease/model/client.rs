//! A process with one line of waiters. It runs the crate's own step; this file only carries out its effects.

use std::sync::Arc;

use tokio::time::Instant;

use crate::error::Error;
use crate::error::reasons::Cause;
use crate::lease::key_state::Position;
use crate::lease::model::Modelled;
use crate::lease::model::properties::{FAIR, FENCES, GOOD, PROMPT};
use crate::lease::model::rules::{Flaw, Rules, TICK, ticks};
use crate::lease::model::server::Verb;
use crate::lease::model::world::{Message, What, World};
use crate::lease::operations::{Answer, Release};
use crate::lease::options::Holding;
use crate::lease::process::Tokens;
use crate::lease::process::entry::{Entry, Stage};
use crate::lease::process::event::{
    Effect, Effects, Event, Grant, Host, Now, PushEvent, Renewed, WaiterOutcome,
};
use crate::lease::token::Token;
use crate::store::notifier::{Link, PushKind};
use crate::store::scheduler::Signal;
use crate::store::validity::{Anchor, Drift, Validity};

/// A line in a process.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) tokens: Tokens<Names>,
    /// The waiter whose future sends the acquire of the line.
    pub(super) asker: Option<usize>,
    pub(super) held: Option<Held>,
    pub(super) sent: Sent,
    pub(super) crashed: bool,
}

/// Makes tokens. A line has a limited number of them.
#[derive(Clone, Debug)]
pub(super) struct Names {
    rules: Arc<Rules>,
    pub(super) asks: usize,
}

/// The id of a token beyond the limit.
const NONE_LEFT: u64 = u64::MAX;

/// A waiter.
#[derive(Clone, Debug)]
pub(crate) struct Seated {
    pub(super) seat: usize,
    holding: Arc<Holding>,
}

impl PartialEq for Seated {
    fn eq(&self, other: &Self) -> bool {
        self.seat == other.seat
    }
}

/// The lease that a seat holds.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(super) token: usize,
    pub(super) seat: usize,
    pub(super) validity: Validity,
    pub(super) fence: i64,
    /// The fence that distinguishes it from other leases with its token.
    number: i64,
    pub(super) twice: bool,
    /// Whether its waiter has not accepted it.
    pub(super) is_offered: bool,
    /// Whether it was granted by a pushed message.
    pub(super) by_push: bool,
}

/// The tokens for which an acquire was sent, as a set of bits.
pub(super) type Sent = u32;

impl Host for Names {
    type Waiter = Seated;
    type Lease = Held;
    type Found = ();

    fn options(waiter: &Seated) -> &Arc<Holding> {
        &waiter.holding
    }

    fn token(&mut self, waiter: &Seated) -> (u64, Token) {
        if self.asks == self.rules.asks {
            return (NONE_LEFT, "".into());
        }
        let token = self.rules.token(waiter.seat, self.asks);
        self.asks += 1;
        (token as u64, self.rules.name(token).clone())
    }

    fn lease(&mut self, waiter: &Seated, grant: Grant) -> Held {
        let Grant {
            id,
            fence,
            twice,
            validity,
            offered,
            ..
        } = grant;
        let token = usize::try_from(id).unwrap_or(usize::MAX);
        Held {
            token,
            seat: waiter.seat,
            validity,
            fence,
            number: fence,
            twice,
            is_offered: offered,
            by_push: false,
        }
    }
}

impl Client {
    pub(super) fn new(rules: &Arc<Rules>) -> Self {
        let names = Names {
            rules: Arc::clone(rules),
            asks: 0,
        };
        Self {
            tokens: Tokens::new(names, rules.of_tokens(), rules.epoch),
            asker: None,
            held: None,
            sent: 0,
            crashed: false,
        }
    }

    /// The acquire of the line, or its lease.
    pub(super) fn entry(&self) -> Option<(usize, &Entry<Names>)> {
        let (id, entry) = self.tokens.entries.iter().next()?;
        Some((usize::try_from(*id).unwrap_or(usize::MAX), entry))
    }

    /// Whether the acquire of a token has no reply yet.
    pub(super) fn is_acquiring(&self, token: usize) -> bool {
        self.entry().is_some_and(|(own, entry)| {
            own == token && matches!(entry.stage, Stage::Acquiring { .. })
        })
    }

    /// Whether its acquire is in flight: in the background, or by the future of a waiter.
    pub(super) fn asks(&self, background: bool) -> bool {
        self.entry().is_some_and(|(_, entry)| match entry.stage {
            Stage::Acquiring { in_background, .. } => in_background == background,
            _ => false,
        })
    }

    /// The token that has a place in the queue, and the call whose reply confirmed that.
    fn queued(&self) -> Option<(usize, Anchor)> {
        let (own, entry) = self.entry()?;
        match entry.stage {
            Stage::Queued { anchor, .. } => Some((own, anchor)),
            _ => None,
        }
    }

    /// Since when the lease is offered.
    pub(super) fn offered(&self) -> Option<Instant> {
        match &self.entry()?.1.stage {
            Stage::Held(held) => held.offered,
            _ => None,
        }
    }
}

impl<H: Modelled> World<H> {
    fn seated(&self, seat: usize) -> Seated {
        Seated {
            seat,
            holding: Arc::clone(&self.rules.holdings[seat]),
        }
    }

    fn key() -> crate::key::Key {
        "k".into()
    }

    /// Returns whether a seat can arrive.
    pub(super) fn may_come(&self, seat: usize) -> bool {
        let client = &self.clients[self.rules.seats[seat].line];
        !client.crashed && (client.entry().is_some() || client.tokens.party.asks < self.rules.asks)
    }

    pub(super) fn comes(&mut self, seat: usize) {
        self.came |= 1 << seat;
        self.waiting.push(seat);
        self.arrives(seat);
    }

    fn arrives(&mut self, seat: usize) {
        let (line, waiter) = (self.rules.seats[seat].line, self.seated(seat));
        let key = Self::key();
        let effects = self.step(line, Event::Arrives { key, waiter }, self.local);
        if !effects.is_empty() {
            self.clients[line].asker = Some(seat);
        }
        self.perform(line, effects, true);
    }

    /// Returns whether a message that has arrived is handled. A waiter that sends its own acquire handles the reply
    /// when it is polled.
    pub(super) fn is_heard(&self, message: &Message) -> bool {
        let line = self.rules.of(message.token).line;
        let is_reply = match message.what {
            What::Reply { verb, .. } => verb == Verb::Acquire,
            _ => false,
        };
        !(is_reply && self.clients[line].is_acquiring(message.token) && self.is_abandoned(line))
    }

    /// Returns whether the future that sends a line's acquire is not polled.
    pub(super) fn is_abandoned(&self, line: usize) -> bool {
        let client = &self.clients[line];
        client.asks(false) && client.asker.is_some_and(|asker| self.is_stalled(asker))
    }

    pub(super) fn receive(&mut self, Message { token, what }: Message) {
        let (line, id) = (self.rules.of(token).line, token as u64);
        let mut is_prompt = false;
        let event = match what {
            What::Push(news) => {
                is_prompt = self.is_prompt(line, token, &news);
                if self.rules.has(Flaw::HolderAnswersPush) && self.clients[line].held.is_some() {
                    return self.send_off(token, Verb::Release);
                }
                Event::Pushed {
                    id,
                    news: self.notice(line, token, news),
                }
            }
            What::Reply {
                verb,
                mut anchor,
                standing,
                twice,
            } => {
                if self.rules.has(Flaw::AnchorAtArrival) {
                    anchor.sent = self.local;
                }
                if let Position::Held { .. } = standing
                    && self.rules.has(Flaw::ReplyValidFromArrival)
                {
                    anchor.sent = self.local;
                }
                let (sent, now) = (
                    Now {
                        at: anchor.sent,
                        link: LINK,
                    },
                    anchor.now,
                );
                match verb {
                    Verb::Acquire => {
                        let twice = twice && !self.rules.has(Flaw::TwiceForgotten);
                        let found = (standing == Position::Done).then_some(());
                        let answer = Answer::acquired(now, standing, found, twice);
                        let asker = self.clients[line]
                            .asker
                            .filter(|asker| !self.is_stalled(*asker));
                        let polled = asker.map(|asker| self.seated(asker));
                        Event::Answered {
                            id,
                            sent,
                            answer,
                            polled,
                        }
                    }
                    Verb::Renew => {
                        let renewed = self.answer(token, anchor, standing);
                        Event::Renewed {
                            id,
                            renewed,
                            scheduled: false,
                        }
                    }
                    Verb::Heartbeat => Event::Positions {
                        sent,
                        now,
                        soonest: 0,
                        each: vec![(id, standing)],
                    },
                    Verb::Release | Verb::Withdraw | Verb::Complete => return,
                }
            }
            What::Call { .. } => return,
        };
        // A process with the flaw that takes expired leases reads its clock too early.
        let late = if self.rules.has(Flaw::LateGrantIsTaken) {
            ticks(4)
        } else {
            ticks(0)
        };
        let at = self.local.checked_sub(late).unwrap_or(self.local);
        let held = self.clients[line].held.is_some();
        let by_push = matches!(event, Event::Pushed { .. });
        let effects = self.step(line, event, at);
        let gives = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Give { .. }));
        self.seen.broken.note(PROMPT, is_prompt && !gives);
        if !held && gives {
            self.forget_calls(token);
        }
        self.perform(line, effects, false);
        if let Some(held) = self.clients[line].held.as_mut().filter(|_| gives) {
            held.by_push = by_push;
        }
    }

    fn answer(&self, token: usize, anchor: Anchor, standing: Position) -> Renewed {
        let Position::Held { expiry, .. } = standing else {
            return Renewed::Gone;
        };
        let until = anchor.until(
            expiry,
            self.rules.holdings[self.rules.seat_of(token)].options.ttl,
            DRIFT,
        );
        Renewed::Valid {
            sent: anchor.sent,
            until,
        }
    }

    fn notice(&self, line: usize, token: usize, news: PushKind) -> PushEvent<()> {
        match news {
            PushKind::Granted { mut expiry, fence } => {
                if self.rules.has(Flaw::PushValidFromArrival) {
                    expiry = self.server.now + 8 * TICK;
                }
                if self.rules.has(Flaw::PushCutAtAnchor)
                    && let Some((_, anchor)) = self.clients[line].queued()
                {
                    expiry = expiry.min(anchor.now + self.rules.of(token).ttl * TICK);
                }
                PushEvent::Granted { expiry, fence }
            }
            PushKind::Gone => PushEvent::Gone,
            PushKind::Told(_) => PushEvent::Found(()),
            PushKind::Refused(why) => PushEvent::Refused(why),
        }
    }

    /// Returns whether a push is a grant that was made just now, and the waiter's last call took no time.
    fn is_prompt(&self, line: usize, token: usize, news: &PushKind) -> bool {
        let PushKind::Granted { expiry, .. } = news else {
            return false;
        };
        let Some((own, anchor)) = self.clients[line].queued() else {
            return false;
        };
        let jumped = self.rules.faults.jump != 0 && !self.jumps;
        let server = ticks((self.server.now - anchor.now) / TICK);
        let stands = self.rules.stands(self.rules.of(token).ttl) * TICK;
        let granted_now = own == token && expiry - self.server.now == stands;
        granted_now && !jumped && server == self.local.duration_since(anchor.sent)
    }

    /// Makes everything of the line due, and handles it.
    pub(super) fn due(&mut self, line: usize) {
        let at = self.local;
        self.clients[line].tokens.make_due(at);
        self.follow(line, Event::Signal(Signal::Due));
    }

    /// Takes a step, and carries out its effects.
    fn follow(&mut self, line: usize, event: Event<Names>) {
        let effects = self.step(line, event, self.local);
        self.perform(line, effects, false);
    }

    fn step(&mut self, line: usize, event: Event<Names>, at: Instant) -> Effects<Names> {
        let tokens = &mut self.clients[line].tokens;
        let effects = tokens.step(event, Now { at, link: LINK });
        tokens.forget_owed();
        effects
    }

    /// Carries out effects. `first`: a waiter has arrived, and sends its own acquire.
    fn perform(&mut self, line: usize, effects: Effects<Names>, first: bool) {
        for effect in effects {
            match effect {
                Effect::Acquire { id, .. } => {
                    let bit = 1 << id.min(31);
                    let copy = self.clients[line].sent & bit != 0;
                    self.clients[line].sent |= bit;
                    if id == NONE_LEFT || (!first && !copy && self.again == 0) {
                        // The limit of the setting is reached.
                        self.drop_line(line);
                        continue;
                    }
                    if !first {
                        self.again = self.again.saturating_sub(u8::from(!copy));
                        self.clients[line].asker = None;
                    }
                    self.call(usize::try_from(id).unwrap_or(usize::MAX), Verb::Acquire);
                }
                Effect::Release { release, .. } => self.release(&release),
                Effect::Give { waiter, lease, .. } => self.offer(line, waiter.seat, lease),
                Effect::Tell { waiter, outcome } => self.told(line, waiter.seat, &outcome),
                Effect::Valid { lease, sent, until } => {
                    let local = self.local;
                    let held = self.clients[line]
                        .held
                        .as_mut()
                        .filter(|held| held.number == lease.number);
                    if held.is_some_and(|held| !held.validity.renewed(sent, until, local)) {
                        let (id, fence) = (lease.token as u64, lease.number);
                        self.follow(line, Event::Lost { id, fence });
                    }
                }
                Effect::Lost { lease, taken_back } => {
                    let held = self.clients[line]
                        .held
                        .take_if(|held| held.number == lease.number);
                    if held.is_some() && !taken_back {
                        self.forget_calls(lease.token);
                        self.send_off(lease.token, Verb::ending(lease.twice));
                    }
                }
                // Renewals and heartbeats are sent at any time.
                Effect::Renew { .. } | Effect::Heartbeat { .. } | Effect::Subscribe => {}
            }
        }
    }

    fn release(&mut self, release: &Release) {
        let is_its = |token: &usize| *self.rules.name(*token) == release.token;
        let Some(token) = self.rules.tokens().find(is_its) else {
            return;
        };
        self.forget_calls(token);
        self.send_off(token, Verb::ending(release.withdrawn));
    }

    fn told(&mut self, line: usize, seat: usize, outcome: &WaiterOutcome<()>) {
        let again =
            matches!(outcome, WaiterOutcome::Again) && !self.is_stalled(seat) && self.again > 0;
        if again && self.clients[line].tokens.party.asks < self.rules.asks {
            self.again -= 1;
            return self.arrives(seat);
        }
        self.waiting.retain(|other| *other != seat);
    }

    fn offer(&mut self, line: usize, seat: usize, lease: Held) {
        let process = self.rules.seats[seat].process;
        let (seats, weight) = (&self.rules.seats, self.rules.seats[seat].weight);
        let is_equal = |other: &&usize| seats[**other].process == process;
        let is_first = self
            .waiting
            .iter()
            .find(is_equal)
            .is_none_or(|first| *first == seat);
        self.seen.broken.note(FAIR, !is_first);
        self.waiting.retain(|other| *other != seat);
        let mut held = lease;
        held.is_offered &= self.is_stalled(seat);
        if !held.is_offered || self.rules.has(Flaw::OfferIsRenewed) {
            let (id, fence) = (held.token as u64, held.number);
            drop(self.step(line, Event::Accepted { id, fence }, self.local));
        }
        if self.rules.has(Flaw::HandOnSameFence) {
            held.fence = held.fence.min(self.server.fence);
        }
        let is_good = held.validity.holds(self.local);
        self.seen.broken.note(GOOD, !is_good);
        // A shared holder has the fence of the exclusive holder before it.
        let shares = weight < self.rules.capacity;
        // After a jump forward, a waiter that was granted a lease later may receive it first.
        let fell = held.fence < self.seen.fence || (held.fence == self.seen.fence && !shares);
        let counts = self.rules.faults.jump <= 0;
        self.seen.broken.note(FENCES, fell && counts);
        self.seen.fence = self.seen.fence.max(held.fence);
        self.clients[line].held = Some(held);
    }

    /// Ends a line at the limit of the setting.
    fn drop_line(&mut self, line: usize) {
        let dropped = self.clients[line].tokens.drop_all();
        self.waiting
            .retain(|seat| !dropped.iter().any(|waiter| waiter.seat == *seat));
    }

    /// Fails an acquire: the waiter that sent it receives the error; a line acquires again.
    pub(super) fn fails(&mut self, line: usize) {
        let Some((token, _)) = self.clients[line].entry() else {
            return;
        };
        let background = self.clients[line].asks(true);
        self.forget_calls(token);
        let (id, error) = (
            token as u64,
            Error::unavailable(Cause::TimedOut, "the call failed"),
        );
        self.follow(
            line,
            Event::Failed {
                id,
                error,
                is_final: false,
            },
        );
        if background {
            self.due(line);
        }
    }

    pub(super) fn leaves(&mut self, seat: usize) {
        let line = self.rules.seats[seat].line;
        self.waiting.retain(|other| *other != seat);
        let Some((token, _)) = self.clients[line].entry() else {
            return;
        };
        let unanswered = self.clients[line].asker == Some(seat);
        let id = (unanswered || !self.rules.holdings[seat].options.cohorts).then_some(token as u64);
        let (key, waiter) = (Self::key(), self.seated(seat));
        self.follow(
            line,
            Event::Leaves {
                key,
                waiter,
                id,
                unanswered,
            },
        );
    }

    /// The holder releases its lease.
    pub(super) fn ends(&mut self, line: usize) {
        let Some(mut held) = self.clients[line].held.take() else {
            return;
        };
        let (id, fence, at) = (held.token as u64, held.number, self.local);
        if !held.validity.holds(at) {
            self.forget_calls(held.token);
        }
        let (name, ttl) = (
            self.rules.name(held.token),
            ticks(self.rules.of(held.token).ttl),
        );
        let release = Release::new(
            &Self::key(),
            name,
            held.twice,
            ttl,
            ticks(self.rules.longest()),
        );
        self.follow(
            line,
            Event::Ends {
                release,
                id,
                fence,
                detached: true,
            },
        );
    }

    /// The holder stores an outcome, and the store releases its lease.
    pub(super) fn completes(&mut self, line: usize) {
        let Some(held) = self.clients[line].held.take() else {
            return;
        };
        self.forget_calls(held.token);
        self.send_off(held.token, Verb::Complete);
        let (id, fence) = (held.token as u64, held.number);
        self.follow(line, Event::Forgotten { id, fence });
    }

    /// Returns the lease of a line that is valid by its own clock.
    pub(super) fn believed(&self, line: usize) -> Option<(&Held, &Validity)> {
        let held = self.clients[line].held.as_ref()?;
        held.validity
            .clone()
            .holds(self.local)
            .then_some((held, &held.validity))
    }

    /// Returns the leases that are valid by the clocks of their lines.
    pub(super) fn beliefs(&self) -> impl Iterator<Item = (&Held, &Validity)> {
        (0..self.clients.len()).filter_map(|line| self.believed(line))
    }

    /// Returns whether a lease is renewed: only after its waiter accepted it.
    pub(super) fn is_renewed(&self, held: &Held) -> bool {
        !held.is_offered || self.rules.has(Flaw::OfferIsRenewed)
    }

    /// Returns whether an offered lease is withdrawn: after half its ttl, but not before the next tick.
    pub(super) fn is_due_back(&self, line: usize) -> bool {
        let Some(held) = &self.clients[line].held else {
            return false;
        };
        let since = self.clients[line]
            .offered()
            .filter(|_| held.is_offered && !self.rules.has(Flaw::OfferIsRenewed));
        since.is_some_and(|since| self.local >= since + ticks(self.rules.of(held.token).ttl) / 2)
    }
}

const LINK: Link = Link::Up(1);
pub(super) const DRIFT: Drift = Drift(0.0);
