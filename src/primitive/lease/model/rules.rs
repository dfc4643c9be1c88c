//! The settings of a model: who wants what, how long things last, what may go wrong, and which rule is broken on purpose.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::key_state::{Spans, Terms};

/// All times are whole ticks. A tick is much longer than the grain of [`Drift`](super::super::belief::Drift), so that
/// what is taken off a span for it makes no difference from one tick to the next.
pub(super) const TICK: i64 = 10_000;

/// What lasts for ever.
const ALWAYS: i64 = 1 << 60;

pub(super) fn ticks(count: i64) -> Duration {
    Duration::from_micros((count * TICK).unsigned_abs())
}

/// Somebody who wants a lease, once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    /// In which line it waits; each line belongs to one process.
    pub(super) line: usize,
    pub(super) process: usize,
    /// Ticks.
    pub(super) ttl: i64,
    pub(super) weight: i64,
    pub(super) rank: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) seats: Vec<Seat>,
    /// How many tokens a line uses at most.
    pub(super) asks: usize,
    pub(super) capacity: i64,
    /// How long a grant stands at most, and for how long a waiter counts as alive after a heartbeat: ticks.
    pub(super) grant: i64,
    pub(super) alive: i64,
    /// How often anybody asks anew, in all.
    pub(super) again: u8,
    /// While so many messages are under way, no heartbeat or renewal is sent.
    pub(super) traffic: usize,
    pub(super) tokens: Tokens,
    pub(super) faults: Faults,
    pub(super) flaws: &'static [Flaw],
    /// The properties that are not promised.
    pub(super) unless: &'static [&'static str],
    /// When it all begins.
    pub(super) epoch: Instant,
    pub(super) names: Vec<Arc<str>>,
}

/// What the kind of lease adds to a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tokens {
    Mutex,
    Permits,
    ReadWrite,
}

/// What may go wrong, besides that messages are late: they always are. So often at most, where it is a number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) crashes: u8,
    /// All that is under way is lost.
    pub(super) losses: bool,
    /// A renewal or heartbeat is followed by the next before it is answered.
    pub(super) repeats: bool,
    /// A call is sent again by the transport, and both copies may be executed.
    pub(super) resends: bool,
    /// A call of an acquire fails: its caller does not know whether it is executed.
    pub(super) failures: bool,
    /// Who waits gives up.
    pub(super) leaves: bool,
    /// Who waits is not polled any more.
    pub(super) stalls: bool,
    /// The lists of the queue are evicted.
    pub(super) evictions: u8,
    /// The server's clock jumps by so many ticks, once.
    pub(super) jump: i64,
    /// Who holds completes, which is for all.
    pub(super) completes: bool,
}

/// A rule that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flaw {
    /// A grant stands for longer than its waiter's time to live.
    LongGrant,
    /// A renewal may shorten a lease.
    RenewalShortens,
    /// A belief takes no notice of a renewal after which the lease ends earlier than was believed.
    BeliefOnlyGrows,
    /// What is left of a lease is not cut to its time to live.
    BeliefIsNotCut,
    /// The time to live of what was pushed counts from the call before.
    PushCutAtAnchor,
    /// A server's leases from before its clock was set back last until they end by the new one.
    SoonestIsNotCut,
    /// What a reply says is left of a lease counts from the moment the reply arrives.
    ReplyValidFromArrival,
    /// A grant counts in full from the moment its push arrives.
    PushValidFromArrival,
    /// A push is reckoned from when the earlier reply arrived, not from when its call was sent.
    AnchorAtArrival,
    /// A holder does not wait, so it answers a push with a release.
    HolderAnswersPush,
    /// What ran out on its way is handed to who waits.
    LateGrantIsTaken,
    /// Each of a handed-on lease's holders has the same fence.
    HandOnSameFence,
    /// What nobody takes up is renewed all the same.
    OfferIsRenewed,
    /// Nobody sees to it that a call is not polled by which a line asks.
    AbandonedUnnoticed,
    /// The first that fits goes first.
    SmallGoesFirst,
    /// The clock alone is the fence.
    FenceIsTheClock,
    /// A release leaves no tombstone.
    NoTombstone,
    /// It is forgotten that an acquire was sent twice.
    TwiceForgotten,
    /// A line that asks again with the token of a call that failed takes it for asked once.
    RetryForgotten,
    /// A heartbeat keeps a waiter alive, and grants nothing.
    HeartbeatGrantsNothing,
    /// A heartbeat does not notice that a place is gone.
    EvictionUnnoticed,
    /// Who completes sends nobody away.
    NobodyDismissed,
    /// All who lock with one value, one after the other, are one holder.
    ValueIsTheHolder,
}

/// How far to go.
pub(super) fn size() -> usize {
    env::var("MODEL_SIZE").map_or(1, |size| size.parse().expect("MODEL_SIZE is a number from 1 on"))
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
            again: 1,
            traffic: 2 * size() - 1,
            tokens,
            faults,
            flaws: &[],
            unless: &[],
            epoch,
            names: Vec::new(),
        };
        rules.named()
    }

    /// A mutex, and seats of one process each.
    pub(super) fn mutex(seats: usize) -> Self {
        let seat = |line| Seat { line, process: line, ttl: 2, weight: 1, rank: 0 };
        Self::new((0..seats).map(seat).collect(), Tokens::Mutex)
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

    /// What is not promised in this setting.
    pub(super) fn but(self, unless: &'static [&'static str]) -> Self {
        Self { unless, ..self }
    }

    pub(super) fn has(&self, flaw: Flaw) -> bool {
        self.flaws.contains(&flaw)
    }

    /// Writes the tokens: process, id, time to live, and what the kind adds.
    fn named(mut self) -> Self {
        let name = |token| {
            let Seat { process, ttl, weight, rank, .. } = self.seats[self.seat_of(token)];
            let ttl = if self.has(Flaw::LongGrant) { String::new() } else { format!(".{:x}", ttl * TICK) };
            let suffix = match self.tokens {
                Tokens::Mutex => String::new(),
                Tokens::Permits => format!("/{weight}/{}", self.capacity),
                Tokens::ReadWrite if rank > 0 => "/r".to_owned(),
                Tokens::ReadWrite => "/w1".to_owned(),
            };
            let id = if self.has(Flaw::ValueIsTheHolder) { process } else { token };
            format!("{process:016x}-{id:x}{ttl}{suffix}").into()
        };
        self.names = (0..self.seats.len() * self.asks).map(name).collect();
        self
    }

    pub(super) fn lines(&self) -> usize {
        self.seats.iter().map(|seat| seat.line + 1).max().unwrap_or(0)
    }

    /// The process that a line belongs to.
    pub(super) fn process(&self, line: usize) -> Option<usize> {
        self.seats.iter().find(|seat| seat.line == line).map(|seat| seat.process)
    }

    /// The token by which a line asks for the `ask`th time, under the options of a seat.
    pub(super) fn token(&self, seat: usize, ask: usize) -> usize {
        seat * self.asks + ask
    }

    pub(super) fn seat_of(&self, token: usize) -> usize {
        token / self.asks
    }

    pub(super) fn of(&self, token: usize) -> Seat {
        self.seats[self.seat_of(token)]
    }

    pub(super) fn name(&self, token: usize) -> &Arc<str> {
        &self.names[token]
    }

    pub(super) fn tokens(&self) -> std::ops::Range<usize> {
        0..self.names.len()
    }

    pub(super) fn spans(&self) -> Spans {
        Spans { grant: self.grant * TICK, alive: self.alive * TICK, tombstone: ALWAYS }
    }

    pub(super) fn terms(&self, token: usize) -> Terms {
        let Seat { ttl, rank, .. } = self.of(token);
        Terms { rank, ..Terms::usual(ttl * TICK) }
    }

    /// How long a grant to a seat stands.
    pub(super) fn stands(&self, ttl: i64) -> i64 {
        if self.has(Flaw::LongGrant) { self.grant } else { self.grant.min(ttl) }
    }

    /// The longest that anything lasts which is reckoned from when a call was sent.
    pub(super) fn longest(&self) -> i64 {
        self.seats.iter().map(|seat| seat.ttl).max().unwrap_or(0).max(self.grant) + self.faults.jump.abs()
    }
}
