//! The processes: their waiters, what these do, and how the effects of a step are carried out.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::super::options::{Holding, LeaseOptions};
use super::super::token::{Suffix, Token};
use super::super::tokens::{Grant, Party, Rules, Tokens};
use super::super::validity::{Drift, Validity};
use super::Leases;
use crate::store::Link;
use crate::sync::lock;
use crate::telemetry;

pub(super) struct Process {
    pub(super) number: usize,
    pub(super) tokens: Tokens<Names>,
    pub(super) link: Link,
    pub(super) crashed: bool,
    /// Until when it does not run.
    pub(super) paused: Instant,
    /// When a call arrives at the earliest: calls of one connection arrive in order. Of the callers, of the background.
    pub(super) connections: [Instant; 2],
    /// The next time at which it looks at what is due.
    pub(super) wakes: Option<Instant>,
}

/// A task that acquires and releases a few times.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) process: usize,
    pub(super) rounds: u32,
    pub(super) weight: i64,
    pub(super) doing: Doing,
    /// Whether its future is polled.
    pub(super) is_polled: bool,
}

#[derive(Debug)]
pub(super) enum Doing {
    Nothing,
    /// It waits. `id`: of its own acquire, and whether that is answered.
    Waits {
        waiter: Waiter,
        own: Option<(u64, bool)>,
        received: Option<Received>,
    },
    Holds(Lease),
    Done,
}

#[derive(Clone, Debug)]
pub(super) enum Received {
    Lease(Lease),
    Again,
    Error,
}

#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(super) actor: usize,
    /// A number of its own.
    number: u64,
    pub(super) holding: Arc<Holding>,
    pub(super) suffix: Suffix,
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(super) actor: usize,
    pub(super) id: u64,
    pub(super) fence: i64,
    pub(super) token: Token,
    pub(super) twice: bool,
    pub(super) offered: bool,
    state: Arc<Mutex<(Validity, bool)>>,
}

impl Lease {
    /// Whether its holder counts on it.
    pub(super) fn is_held(&self, at: Instant) -> bool {
        let (validity, over) = &mut *lock(&self.state);
        !*over && validity.holds(at)
    }

    /// Whether it has ended, and its holder has not given it up.
    pub(super) fn is_lost(&self, at: Instant) -> bool {
        let (validity, over) = &mut *lock(&self.state);
        !*over && !validity.holds(at)
    }

    pub(super) fn renewed(&self, sent: Instant, until: Instant, at: Instant) -> bool {
        lock(&self.state).0.renewed(sent, until, at)
    }

    pub(super) fn end(&self) {
        lock(&self.state).1 = true;
    }
}

/// Makes the tokens of a process.
#[derive(Debug)]
pub(crate) struct Names {
    process: usize,
    next: u64,
}

impl Party for Names {
    type Waiter = Waiter;
    type Lease = Lease;
    type Found = ();

    fn options(waiter: &Waiter) -> &Arc<Holding> {
        &waiter.holding
    }

    /// Some of those that stand in no line with others.
    fn gives_up(waiter: &Waiter) -> bool {
        !waiter.holding.options.cohorts && waiter.number % 8 == 7
    }

    fn token(&mut self, waiter: &Waiter) -> (u64, Token) {
        self.next += 1;
        let id = (self.process as u64) << 32 | self.next;
        (id, Token::new(self.process as u64, id, &waiter.holding.marks, &waiter.suffix))
    }

    fn lease(&mut self, waiter: &Waiter, grant: Grant) -> Lease {
        let Grant { token, id, fence, twice, validity, offered, .. } = grant;
        let state = Arc::new(Mutex::new((validity, false)));
        Lease { actor: waiter.actor, id, fence, token, twice, offered, state }
    }
}

impl Process {
    pub(super) fn new(number: usize, rules: Rules, now: Instant) -> Self {
        let tokens = Tokens::new(Names { process: number, next: 0 }, rules, now);
        let (link, connections) = (Link::Up(1), [now; 2]);
        Self { number, tokens, link, crashed: false, paused: now, connections, wakes: None }
    }
}

/// The process that an id names.
pub(super) fn process_of(id: u64) -> usize {
    (id >> 32) as usize
}

pub(super) fn holding(ttl: std::time::Duration, leases: Leases) -> Arc<Holding> {
    let options =
        LeaseOptions { ttl, drift: Drift(0.01), cohorts: leases == Leases::Mutex, ..LeaseOptions::default() };
    let leases = telemetry::Leases::new("permit", "simulation");
    Arc::new(Holding::new(options, leases))
}

pub(super) fn waiter(actor: usize, number: u64, holding: Arc<Holding>, suffix: Suffix) -> Waiter {
    Waiter { actor, number, holding, suffix }
}
