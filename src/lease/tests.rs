//! Single steps of one process: its effects after an event, and when it is due again. Each test has exact times.
//! Processes with callers, a network and faults are in the worlds of `tests/simulation`.

mod keep;
mod pace;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::error::reasons::Cause;
use crate::key::Key;
use crate::lease::key_state::Position;
use crate::lease::operations::{Answer, Release};
use crate::lease::options::{Holding, LeaseOptions, Rules};
use crate::lease::process::Tokens;
use crate::lease::process::event::{
    Effect, Effects, Event, Grant, Host, Now, PushEvent, Renewed, WaiterOutcome,
};
use crate::lease::token::{Suffix, Token};
use crate::store::notifier::Link;
use crate::store::scheduler::Signal;
use crate::store::validity::Validity;
use crate::telemetry;

const RULES: Rules = Rules {
    grant: ms(1500),
    alive: ms(7000),
    heartbeat: ms(2000),
    call: ms(3500),
    is_remote: true,
    releases: 2,
    is_durable: false,
    has_outcomes: false,
};

/// The server's time in each reply, µs.
const SERVER: i64 = 9_000_000;
const QUEUED: Position = Position::Queued {
    soonest: 0,
    before: 0,
};
const UP: Link = Link::Up(1);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn away(cause: Cause) -> Error {
    Error::unavailable(cause, "the server is away")
}

/// A lease for `left` ms.
fn held(left: i64) -> Position {
    Position::Held {
        expiry: SERVER + left * 1000,
        fence: 7,
    }
}

const GRANTED: PushEvent<()> = PushEvent::Granted {
    expiry: SERVER + 1_000_000,
    fence: 7,
};

/// The first lease of a process, which is valid from `at` on.
fn grant((id, token): (u64, Token), at: Instant, left: Duration, twice: bool) -> Grant {
    let (key, validity) = ("k".into(), Validity::granted(at + left, at).unwrap());
    Grant {
        key,
        token,
        id,
        fence: 1,
        twice,
        validity,
        at,
        offered: false,
    }
}

/// The release of a lease that lasts for `left` ms.
fn release(left: u64) -> Release {
    Release::new(&"k".into(), &"token".into(), false, ms(30_000), ms(left))
}

#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    /// Waiters with one number are equal.
    number: u64,
    holding: Arc<Holding>,
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

/// The number of a waiter that gives up when the store is unavailable.
const HASTY: u64 = 777;

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    fence: i64,
}

/// Makes tokens: their ids count up.
#[derive(Debug)]
pub(crate) struct Names(u64);

impl Host for Names {
    type Waiter = Waiter;
    type Lease = Lease;
    type Found = ();

    fn options(waiter: &Waiter) -> &Arc<Holding> {
        &waiter.holding
    }

    fn gives_up(waiter: &Waiter) -> bool {
        waiter.number == HASTY
    }

    fn token(&mut self, waiter: &Waiter) -> (u64, Token) {
        self.0 += 1;
        (
            self.0,
            Token::new(0, self.0, &waiter.holding.marks, &Suffix::default()),
        )
    }

    fn lease(&mut self, _: &Waiter, grant: Grant) -> Lease {
        Lease { fence: grant.fence }
    }
}

/// A waiter with the default options, except for those that `set` changes.
fn of(number: u64, set: impl FnOnce(&mut LeaseOptions)) -> Waiter {
    let mut options = LeaseOptions::default();
    set(&mut options);
    let holding = Holding::new(options, telemetry::Leases::new("permit", "steps"));
    Waiter {
        number,
        holding: Arc::new(holding),
    }
}

/// A waiter whose permit lasts for 30 s.
fn single(number: u64) -> Waiter {
    of(number, |_| {})
}

/// A waiter in the line of its process.
fn in_line(number: u64, ttl: u64) -> Waiter {
    of(number, |options| {
        (options.ttl, options.cohorts) = (ms(ttl), true)
    })
}

/// A process. Its times are in ms since its start.
struct Steps {
    tokens: Tokens<Names>,
    began: Instant,
}

impl Steps {
    fn new() -> Self {
        Self::with(RULES)
    }

    fn with(rules: Rules) -> Self {
        let began = Instant::now();
        Self {
            tokens: Tokens::new(Names(0), rules, began),
            began,
        }
    }

    fn at(&self, at: u64) -> Now {
        self.linked(at, UP)
    }

    fn linked(&self, at: u64, link: Link) -> Now {
        Now {
            at: self.began + ms(at),
            link,
        }
    }

    fn step(&mut self, ms: u64, event: Event<Names>) -> Effects<Names> {
        let now = self.at(ms);
        self.tokens.step(event, now)
    }

    fn arrives(&mut self, ms: u64, waiter: &Waiter) -> Effects<Names> {
        self.step(
            ms,
            Event::Arrives {
                key: "k".into(),
                waiter: waiter.clone(),
            },
        )
    }

    /// A waiter arrives at the start.
    fn comes(&mut self, waiter: &Waiter) -> Effects<Names> {
        self.arrives(0, waiter)
    }

    fn pushed(&mut self, ms: u64, id: u64, news: PushEvent<()>) -> Vec<String> {
        said(&self.step(ms, Event::Pushed { id, news }))
    }

    fn leaves(&mut self, ms: u64, waiter: &Waiter, id: u64, unanswered: bool) -> Effects<Names> {
        let (key, waiter, id) = ("k".into(), waiter.clone(), Some(id));
        self.step(
            ms,
            Event::Leaves {
                key,
                waiter,
                id,
                unanswered,
            },
        )
    }

    fn released(&mut self, ms: u64, owed: u64, result: Result<(), Error>) -> Effects<Names> {
        self.step(ms, Event::Released { owed, result })
    }

    /// The reply to a renewal arrives.
    fn renewal(&mut self, ms: u64, id: u64, renewed: Renewed, scheduled: bool) -> Vec<String> {
        said(&self.step(
            ms,
            Event::Renewed {
                id,
                renewed,
                scheduled,
            },
        ))
    }

    /// An acquire fails.
    fn failed(&mut self, ms: u64, id: u64, cause: Cause, is_final: bool) -> Vec<String> {
        said(&self.step(
            ms,
            Event::Failed {
                id,
                error: away(cause),
                is_final,
            },
        ))
    }

    /// A heartbeat fails.
    fn unanswered(&mut self, ms: u64, id: u64, cause: Cause) -> Vec<String> {
        said(&self.step(
            ms,
            Event::Unanswered {
                ids: vec![id],
                error: away(cause),
            },
        ))
    }

    /// A waiter arrives at the start, and acquires. Returns the id of its acquire.
    fn one(&mut self, waiter: &Waiter) -> u64 {
        acquire(&self.comes(waiter))
    }

    fn answered(&mut self, ms: u64, id: u64, standing: Position) -> Effects<Names> {
        let (sent, answer) = (
            self.at(ms - 1),
            Answer::acquired(SERVER, standing, None, false),
        );
        self.step(
            ms,
            Event::Answered {
                id,
                sent,
                answer,
                polled: None,
            },
        )
    }

    /// The reply to a heartbeat arrives. Returns the effects.
    fn stands(&mut self, ms: u64, id: u64, standing: Position) -> Vec<String> {
        let (sent, each) = (self.at(ms - 1), vec![(id, standing)]);
        said(&self.step(
            ms,
            Event::Positions {
                sent,
                now: SERVER,
                soonest: 0,
                each,
            },
        ))
    }

    fn due(&mut self, ms: u64) -> Effects<Names> {
        self.step(ms, Event::Signal(Signal::Due))
    }

    /// Asserts the effects when it is due, and when it is due next.
    #[track_caller]
    fn sends(&mut self, ms: u64, effects: &[&str], next: Option<u64>) {
        let sent = said(&self.due(ms));
        let sent: Vec<_> = sent.iter().map(String::as_str).collect();
        assert_eq!((&*sent, self.next()), (effects, next), "at {ms} ms");
    }

    /// Returns when it is due, ms.
    fn next(&self) -> Option<u64> {
        self.tokens
            .due()
            .map(|at| (at - self.began).as_millis() as u64)
    }

    /// Returns the same, and whether the waiters know of an outage.
    fn next_in_outage(&self, ms: u64) -> (Option<u64>, bool) {
        (self.next(), self.outage(&"k".into(), ms))
    }

    fn outage(&self, key: &Key, ms: u64) -> bool {
        self.tokens.outage(key, self.at(ms).at).is_some()
    }
}

/// The id of the only effect, an acquire.
#[track_caller]
fn acquire(effects: &[Effect<Names>]) -> u64 {
    let [Effect::Acquire { id, .. }] = effects else {
        panic!("{effects:?}")
    };
    *id
}

/// Returns the effects in short form.
fn said(effects: &[Effect<Names>]) -> Vec<String> {
    let short = |effect: &Effect<Names>| match effect {
        Effect::Acquire { .. } => "acquire".into(),
        Effect::Release { release, .. } if release.withdrawn => "withdraw".into(),
        Effect::Release { .. } => "release".into(),
        Effect::Heartbeat { waiters, .. } => format!("heartbeat of {}", waiters.len()),
        Effect::Renew { extends, .. } => (if *extends { "renew" } else { "ask" }).into(),
        Effect::Valid { .. } => "valid".into(),
        Effect::Subscribe => "subscribe".into(),
        Effect::Give { lease, .. } => format!("give {}", lease.fence),
        Effect::Tell {
            outcome: WaiterOutcome::Again,
            ..
        } => "again".into(),
        Effect::Tell {
            outcome: WaiterOutcome::Found(()),
            ..
        } => "found".into(),
        Effect::Tell {
            outcome: WaiterOutcome::Failed(_),
            ..
        } => "failed".into(),
        Effect::Tell {
            outcome: WaiterOutcome::Closed,
            ..
        } => "closed".into(),
        Effect::Tell {
            outcome: WaiterOutcome::Refused { left, before },
            ..
        } => format!("refused {left} {before}"),
        Effect::Lost {
            taken_back: true, ..
        } => "taken back".into(),
        Effect::Lost { .. } => "lost".into(),
    };
    effects.iter().map(short).collect()
}
