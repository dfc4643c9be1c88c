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

mod keep;
mod network;
mod pace;
mod process;
mod referee;
mod steps;

use std::collections::BTreeSet;
use std::env;
use std::time::Instant as StdInstant;

use self::network::Simulation;
use super::kind::Holders;
use crate::lease::holder::Holder;
use crate::random;
use crate::rw_lock::holders::RwHolders;
use crate::wait_group::holders::PermitHolders;

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

/// `SEEDS` sets how many seeds run, `SEED` the first one. Without it, the first one is drawn, and printed.
#[test]
fn all() {
    let (first, count) = (number("SEED", random::bits() >> 32), number("SEEDS", 1000));
    println!("SEED={first} SEEDS={count}");
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
