//! The rules of a model: the waiters and their requests, the time spans, the faults that may happen, and the rules that
//! are deliberately broken.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::lease::key_state::{AcquireTerms, Spans};
use crate::lease::model::client::DRIFT;
use crate::lease::options::{Holding, LeaseOptions};
use crate::lease::settings::CallerSettings;
use crate::lease::token::Token;
use crate::lease::{options, settings};
use crate::telemetry::counters::Leases;

/// All times are whole ticks. A tick is much longer than the grain of [`Drift`](super::super::validity::Drift), so that
/// subtracting the grain makes no difference in ticks.
pub(super) const TICK: i64 = 10_000;

/// A number of ticks that never passes.
const ALWAYS: i64 = 1 << 40;

pub(super) fn ticks(count: i64) -> Duration {
    Duration::from_micros((count * TICK).unsigned_abs())
}

/// A waiter for a lease. It arrives only once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    /// The line that it waits in. Each line belongs to one process.
    pub(super) line: usize,
    pub(super) process: usize,
    /// The ttl, in ticks.
    pub(super) ttl: i64,
    pub(super) weight: i64,
    pub(super) rank: i64,
    /// Its flow; 0: none.
    pub(super) flow: i64,
}

pub(super) const SEAT: Seat = Seat {
    line: 0,
    process: 0,
    ttl: 2,
    weight: 1,
    rank: 0,
    flow: 0,
};

/// Seats of one process each. `set` changes some of them, by their numbers.
pub(super) fn one_each(seats: usize, set: impl Fn(usize, &mut Seat)) -> Vec<Seat> {
    let seat = |line| {
        let mut seat = Seat {
            line,
            process: line,
            ..SEAT
        };
        set(line, &mut seat);
        seat
    };
    (0..seats).map(seat).collect()
}

#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) seats: Vec<Seat>,
    /// The most tokens that a line uses.
    pub(super) asks: usize,
    pub(super) capacity: i64,
    /// How long a grant lasts at most, and how long a waiter counts as alive after a heartbeat: in ticks.
    pub(super) grant: i64,
    pub(super) alive: i64,
    /// How long waiters may be passed by lower ranks, in ticks; 0: for any time.
    pub(super) aging: i64,
    /// For how long there must have been waiters, so that the newest is served first, in ticks; 0: in the order of
    /// arrival.
    pub(super) newest: i64,
    /// How long a tombstone lasts, in ticks.
    pub(super) tombstone: i64,
    /// How long after it was sent a call may run, in ticks. After that it is lost. `None`: it may run at any time.
    pub(super) late: Option<i64>,
    /// How often lines acquire again, in total.
    pub(super) again: u8,
    pub(super) tokens: Tokens,
    pub(super) faults: Faults,
    pub(super) flaws: &'static [Flaw],
    /// The properties that are not promised in this setting.
    pub(super) unless: &'static [&'static str],
    /// The start of time.
    pub(super) epoch: Instant,
    pub(super) names: Vec<Token>,
    /// The options of each seat.
    pub(super) holdings: Vec<Arc<Holding>>,
}

/// The suffix that the kind of lease adds to a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tokens {
    Mutex,
    Permits,
    ReadWrite,
}

/// The faults that may happen. Late messages are always possible. A number is the maximum number of times that a fault
/// happens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) crashes: u8,
    /// All messages in flight are lost.
    pub(super) losses: bool,
    /// The transport sends a call again, and both copies may run.
    pub(super) resends: bool,
    /// An acquire fails: its caller does not know whether it ran.
    pub(super) failures: bool,
    /// A waiter gives up.
    pub(super) leaves: bool,
    /// A waiter is no longer polled.
    pub(super) stalls: bool,
    /// The lists of the queue are evicted.
    pub(super) evictions: u8,
    /// The server's clock jumps by this many ticks, once.
    pub(super) jump: i64,
    /// A holder completes. Its outcome is for all waiters.
    pub(super) completes: bool,
}

/// A rule that is deliberately broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flaw {
    /// A grant lasts longer than its waiter's ttl.
    LongGrant,
    /// A renewal may shorten a lease.
    RenewalShortens,
    /// The validity of a lease is not cut to its ttl.
    BeliefIsNotCut,
    /// The ttl of a pushed grant counts from the call before it.
    PushCutAtAnchor,
    /// Leases from before the server's clock was set back last until their old expiry: tokens do not contain their ttl.
    SoonestIsNotCut,
    /// The validity in a reply counts from the arrival of the reply.
    ReplyValidFromArrival,
    /// A grant counts in full from the arrival of its push.
    PushValidFromArrival,
    /// The validity of a push is computed from the arrival of the earlier reply, not from when its call was sent.
    AnchorAtArrival,
    /// A holder responds to a push with a release, since it is not waiting.
    HolderAnswersPush,
    /// A lease that expired before its grant arrived is handed to its waiter.
    LateGrantIsTaken,
    /// All holders of a lease that is handed on have the same fence.
    HandOnSameFence,
    /// A lease is renewed before its waiter accepts it.
    OfferIsRenewed,
    /// A waiter that fits is served at once, even before others.
    SmallGoesFirst,
    /// The fence of a grant is the clock alone.
    FenceIsTheClock,
    /// A release leaves no tombstone.
    NoTombstone,
    /// Waiters may be passed by lower ranks for any time.
    ClassesDoNotAge,
    /// The newest waiter is served first as soon as there are two.
    NewestAtOnce,
    /// A waiter that lines up behind others does not extend how long the queue is kept.
    BusyQueueIsNotKept,
    /// A line forgets that its acquire was sent twice.
    TwiceForgotten,
    /// A heartbeat keeps a waiter alive, but grants nothing.
    HeartbeatGrantsNothing,
    /// A heartbeat does not notice that a place is gone.
    EvictionUnnoticed,
    /// A completion does not make the waiters acquire again.
    NobodyDismissed,
}

impl Rules {
    pub(super) fn new(seats: Vec<Seat>, tokens: Tokens) -> Self {
        let (capacity, faults, epoch) = (1, Faults::default(), Instant::now());
        let rules = Self {
            seats,
            asks: 1,
            capacity,
            grant: 1,
            alive: 2,
            aging: 0,
            newest: 0,
            tombstone: ALWAYS,
            late: None,
            again: 1,
            tokens,
            faults,
            flaws: &[],
            unless: &[],
            epoch,
            names: Vec::new(),
            holdings: Vec::new(),
        };
        rules.named()
    }

    /// A mutex, with one process for each seat.
    pub(super) fn mutex(seats: usize) -> Self {
        Self::new(one_each(seats, |_, _| ()), Tokens::Mutex)
    }

    pub(super) fn asks(self, asks: usize) -> Self {
        Self { asks, ..self }.named()
    }

    pub(super) fn faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    pub(super) fn flaws(self, flaws: &'static [Flaw]) -> Self {
        Self { flaws, ..self }.named()
    }

    /// Sets the properties that are not promised in this setting.
    pub(super) fn but(self, unless: &'static [&'static str]) -> Self {
        Self { unless, ..self }
    }

    pub(super) fn has(&self, flaw: Flaw) -> bool {
        self.flaws.contains(&flaw)
    }

    /// Writes the tokens: process, id, ttl, and the suffix of the kind.
    fn named(mut self) -> Self {
        let name = |token| {
            let Seat {
                process,
                ttl,
                weight,
                rank,
                flow,
                ..
            } = self.seats[self.seat_of(token)];
            let is_cut = !(self.has(Flaw::LongGrant) || self.has(Flaw::SoonestIsNotCut));
            let ttl = if is_cut {
                format!(".{:x}", ttl * TICK)
            } else {
                String::new()
            };
            let suffix = match self.tokens {
                Tokens::Mutex => String::new(),
                // The cost is the weight.
                Tokens::Permits if flow > 0 => format!("/{weight}/{}/{flow}.400..", self.capacity),
                Tokens::Permits => format!("/{weight}/{}", self.capacity),
                Tokens::ReadWrite if rank > 0 => "/r".to_owned(),
                Tokens::ReadWrite => "/w1".to_owned(),
            };
            format!("{process:016x}-{token:x}{ttl}{suffix}").into()
        };
        let names = (0..self.seats.len() * self.asks).map(name).collect();
        let cohorts = self.tokens == Tokens::Mutex;
        let holding = |seat: &Seat| {
            // With this flaw, a process assumes a longer ttl, so that it does not cut the lease.
            let ttl = ticks(if self.has(Flaw::BeliefIsNotCut) {
                seat.ttl + 8
            } else {
                seat.ttl
            });
            let options = LeaseOptions {
                ttl,
                drift: DRIFT,
                cohorts,
                ..LeaseOptions::default()
            };
            let leases = Leases::new("permit", "model");
            Arc::new(Holding::new(options, leases))
        };
        (self.holdings, self.names) = (self.seats.iter().map(holding).collect(), names);
        self
    }

    /// The rules of the step of a process.
    pub(super) fn of_tokens(&self) -> options::Rules {
        options::Rules {
            grant: ticks(self.grant),
            alive: ticks(self.alive),
            heartbeat: ticks(1),
            call: ticks(1),
            is_remote: true,
            releases: usize::MAX,
            is_durable: false,
            has_outcomes: false,
        }
    }

    pub(super) fn lines(&self) -> usize {
        self.seats
            .iter()
            .map(|seat| seat.line + 1)
            .max()
            .unwrap_or(0)
    }

    /// Returns the process that a line belongs to.
    pub(super) fn process(&self, line: usize) -> Option<usize> {
        self.seats
            .iter()
            .find(|seat| seat.line == line)
            .map(|seat| seat.process)
    }

    /// Returns the token of a line's acquire number `ask`, with the options of a seat.
    pub(super) fn token(&self, seat: usize, ask: usize) -> usize {
        seat * self.asks + ask
    }

    pub(super) fn seat_of(&self, token: usize) -> usize {
        token / self.asks
    }

    pub(super) fn of(&self, token: usize) -> Seat {
        self.seats[self.seat_of(token)]
    }

    pub(super) fn name(&self, token: usize) -> &Token {
        &self.names[token]
    }

    pub(super) fn tokens(&self) -> std::ops::Range<usize> {
        0..self.names.len()
    }

    /// Returns the tokens of a line.
    pub(super) fn tokens_of(&self, line: usize) -> Vec<usize> {
        self.tokens()
            .filter(|token| self.of(*token).line == line)
            .collect()
    }

    pub(super) fn spans(&self) -> Spans {
        let [grant, alive, tombstone] =
            [self.grant, self.alive, self.tombstone].map(|span| span * TICK);
        Spans {
            grant,
            alive,
            tombstone,
        }
    }

    pub(super) fn terms(&self, token: usize) -> AcquireTerms {
        let Seat { ttl, rank, .. } = self.of(token);
        AcquireTerms {
            rank,
            ..AcquireTerms::usual(ttl * TICK)
        }
    }

    /// The settings that each acquire sends.
    pub(super) fn told(&self) -> CallerSettings {
        let aging = if self.has(Flaw::ClassesDoNotAge) {
            ALWAYS
        } else {
            self.aging * TICK
        };
        let newest = if self.has(Flaw::NewestAtOnce) {
            1
        } else {
            self.newest * TICK
        };
        CallerSettings {
            limit: None,
            rules: settings::Rules {
                aging,
                newest,
                ..settings::Rules::default()
            }
            .into(),
        }
    }

    /// Returns how long a grant to a seat lasts.
    pub(super) fn stands(&self, ttl: i64) -> i64 {
        if self.has(Flaw::LongGrant) {
            self.grant
        } else {
            self.grant.min(ttl)
        }
    }

    /// Returns the longest span that counts from when a call was sent.
    pub(super) fn longest(&self) -> i64 {
        self.seats
            .iter()
            .map(|seat| seat.ttl)
            .max()
            .unwrap_or(0)
            .max(self.grant)
            + self.faults.jump.abs()
    }
}
