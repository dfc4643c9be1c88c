//! Simulations of several processes and one server, each reproducible by its seed.
//!
//! The processes run the crate's own [step](super::tokens::Tokens::step), the server the crate's own
//! [`KeyState`](super::key_state::KeyState). Between them is a network that delays calls, runs them late or twice, loses
//! calls, replies and pushed messages, and lets calls of different connections overtake each other. Processes pause and
//! crash, futures are dropped or not polled, the server's clock is set back, and the queue is evicted; all of that at once.
//!
//! A referee checks after each event that the holders which count on their leases fit, and that fences rise. At the end,
//! when the faults have stopped, every waiter must have been served, and nothing may be left.
//!
//! ```sh
//! SEEDS=100000 cargo test --release --all-features --lib lease::simulation -- --nocapture
//! TRACE=1 SEED=4711 cargo test --all-features --lib lease::simulation::one -- --nocapture
//! ```

mod network;
mod process;
mod referee;

use std::collections::BTreeSet;
use std::env;
use std::time::{Duration, Instant as StdInstant};

use tokio::time::Instant;

use self::network::Simulation;
use super::key_state::Standing;
use super::kind::Holders;
use super::operations::Answer;
use super::tokens::{Effect, Event, Notice, Now};
use crate::Error;
use crate::error::Cause;
use crate::primitive::mutex::holder::Holder;
use crate::primitive::rw_lock::holders::RwHolders;
use crate::primitive::wait_group::holders::PermitHolders;
use crate::store::{Link, Signal};

/// The kinds of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leases {
    Mutex,
    Permits,
    ReadWrite,
}

/// A fault of the crate that is put back on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// A release is lost if the line of its token acquires again.
    HandedOverReleaseLost,
    /// A release is sent once, whatever becomes of it.
    ReleaseNotRepeated,
    /// That an acquire was sent twice is forgotten.
    TwiceForgotten,
    /// The validity of an answer counts from its arrival.
    ValidFromArrival,
    /// A pushed grant is valid from its arrival.
    PushValidFromArrival,
    /// A waiter can still accept a lease that was taken back.
    TakenBackAccepted,
    /// No heartbeat is sent.
    NoHeartbeats,
    /// Leases are not renewed.
    NoRenewals,
    /// All holders of a token have one fence.
    OneFence,
    /// A failed acquire is not withdrawn.
    FailureNotWithdrawn,
}

/// Runs a seed. Returns what the referee saw.
fn run(seed: u64, flaw: Flaw) -> Result<u64, String> {
    match seed % 3 {
        0 => Simulation::<Holder>::new(seed, Leases::Mutex, flaw).run(),
        1 => Simulation::<PermitHolders>::new(seed, Leases::Permits, flaw).run(),
        _ => Simulation::<RwHolders>::new(seed, Leases::ReadWrite, flaw).run(),
    }
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// `SEEDS` sets how many seeds run, `SEED` the first one.
#[test]
fn all() {
    let (first, count) = (number("SEED", 0), number("SEEDS", 1000));
    let (began, threads) = (StdInstant::now(), 2);
    let results: Vec<_> = std::thread::scope(|scope| {
        let part = |thread| (first + thread..first + count).step_by(threads);
        let parts = (0..threads as u64).map(|thread| {
            scope.spawn(move || {
                let mut events = 0;
                for seed in part(thread) {
                    match run(seed, Flaw::None) {
                        Ok(count) => events += count,
                        Err(problem) => return Err(format!("SEED={seed}: {problem}")),
                    }
                }
                Ok(events)
            })
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().map(|part| part.join().expect("a simulation panicked")).collect()
    });
    let problems: BTreeSet<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(problems.is_empty(), "{problems:#?}");
    let events: u64 = results.iter().filter_map(|result| result.as_ref().ok()).sum();
    let seconds = began.elapsed().as_secs_f64();
    println!("figure simulation-seeds {count}");
    println!("figure simulation-seeds-per-second {:.0}", count as f64 / seconds);
    println!("{events} events, {:.0} per second", events as f64 / seconds);
}

/// Runs the seed `SEED` alone, for `--nocapture`.
#[test]
fn one() {
    let seed = number("SEED", 0);
    let result = run(seed, Flaw::None);
    assert!(result.is_ok(), "SEED={seed}: {result:?}");
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 0..30 {
        assert_eq!(run(seed, Flaw::None), run(seed, Flaw::None), "SEED={seed}");
    }
}

/// Each flaw is found within this many seeds.
const MOST: u64 = 3000;

fn is_found(flaw: Flaw) {
    let found = (0..MOST).find_map(|seed| Some((seed, run(seed, flaw).err()?)));
    let Some((seed, problem)) = found else { panic!("{flaw:?} was not found in {MOST} seeds") };
    println!("{flaw:?}: SEED={seed}: {problem}");
}

macro_rules! flaws {
    ($($name:ident $flaw:ident),+ $(,)?) => {
        mod flaws {
            $(#[test] fn $name() { super::is_found(super::Flaw::$flaw); })+
        }
    };
}

flaws! {
    a_release_that_is_lost_with_its_line HandedOverReleaseLost,
    a_release_that_is_sent_once ReleaseNotRepeated,
    an_acquire_whose_copy_is_forgotten TwiceForgotten,
    an_answer_that_is_valid_from_its_arrival ValidFromArrival,
    a_push_that_is_valid_from_its_arrival PushValidFromArrival,
    a_lease_that_is_accepted_after_it_was_taken_back TakenBackAccepted,
    waiters_that_send_no_heartbeats NoHeartbeats,
    leases_that_are_not_renewed NoRenewals,
    one_fence_for_all_holders_of_a_token OneFence,
    a_failed_acquire_that_is_not_withdrawn FailureNotWithdrawn,
}

/// The holders of one key.
trait Simulated: Holders {}

impl<H: Holders> Simulated for H {}

/// A grant is announced before the acquire is answered. The copy of the acquire that is sent later finds the token queued
/// again, after the server's clock was set back: the grant has ended, although its expiry is ahead.
#[test]
fn a_message_that_came_before_the_answer_grants_nothing() {
    let at = Instant::now();
    let later = |ms| Now { at: at + Duration::from_millis(ms), link: Link::Up(1) };
    let holding = process::holding(Duration::from_secs(30), Leases::Mutex);
    let mut tokens = process::Process::new(0, network::rules(), at).tokens;
    let waiter = process::waiter(0, 0, holding, String::new());
    let effects = tokens.step(Event::Arrives { key: "k".into(), waiter }, later(0));
    let [Effect::Acquire { id, .. }] = effects[..] else { panic!("{effects:?}") };
    tokens.step(Event::Pushed { id, news: Notice::Granted { expiry: 10_000_000, fence: 7 } }, later(1));
    tokens.step(Event::Signal(Signal::Due), later(5000));
    let standing = Standing::Queued { soonest: 0, before: 0 };
    let answer = Answer::acquired(9_000_000, standing, None, false);
    let effects = tokens.step(Event::Answered { id, sent: later(5000), answer, polled: None }, later(5001));
    assert!(matches!(effects[..], [Effect::Subscribe]), "{effects:?}");
    let effects = tokens.step(Event::Signal(Signal::Due), later(5001));
    assert!(matches!(effects[..], [Effect::Heartbeat { .. }]), "{effects:?}");
}

/// A heartbeat cannot be sent, and its waiter gives up: its place is withdrawn, or it would be granted a lease.
#[test]
fn who_gives_up_leaves_no_place() {
    let at = Instant::now();
    let later = |ms| Now { at: at + Duration::from_millis(ms), link: Link::Up(1) };
    let holding = process::holding(Duration::from_secs(30), Leases::Permits);
    let mut tokens = process::Process::new(0, network::rules(), at).tokens;
    let waiter = process::waiter(0, 7, holding, String::new());
    let effects = tokens.step(Event::Arrives { key: "k".into(), waiter }, later(0));
    let [Effect::Acquire { id, .. }] = effects[..] else { panic!("{effects:?}") };
    let answer = Answer::acquired(9_000_000, Standing::Queued { soonest: 0, before: 0 }, None, false);
    tokens.step(Event::Answered { id, sent: later(0), answer, polled: None }, later(1));
    let effects = tokens.step(Event::Signal(Signal::Due), later(5000));
    assert!(matches!(effects[..], [Effect::Heartbeat { .. }]), "{effects:?}");
    let error = Error::unavailable(Cause::BreakerOpen, "the breaker is open");
    let effects = tokens.step(Event::Unanswered { ids: vec![id], error }, later(5001));
    assert!(matches!(effects[..], [Effect::Release { .. }, Effect::Tell { .. }]), "{effects:?}");
}
