//! Two faults at once: pairs, beginnings and lengths are drawn from a seed.
//!
//! `FAULTS_SECONDS=3600` draws scenes for so long. Each prints its seed, and `FAULTS_SEED=… FAULTS_SECONDS=0` repeats that scene
//! alone: the same faults at the same times, but not the same calls.
//!
//! What each fault excuses is excused. So a pair of which one may lose state is judged as that one alone.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::fault::Fault;
use super::{Strike, run_rounds};

const ROUNDS: u32 = 2;
const LENGTHS: std::ops::Range<u64> = 50..1600;

/// Where a fault can strike.
#[derive(PartialEq, Eq)]
enum Place {
    Anywhere,
    OneServer,
    /// It has servers of its own.
    Own,
}

fn place(fault: Fault) -> Place {
    match fault {
        Fault::ScriptFlush
        | Fault::ClientKill
        | Fault::ClientPause
        | Fault::OutOfMemory
        | Fault::ClientStopped
        | Fault::ClientKilled => Place::Anywhere,
        Fault::SentinelKill | Fault::ClusterKill | Fault::SlotMigration => Place::Own,
        _ => Place::OneServer,
    }
}

/// What two faults cannot both have.
fn parts(fault: Fault) -> &'static [&'static str] {
    match fault {
        // No slot moves to a server that is out of memory.
        Fault::OutOfMemory | Fault::EvictAll | Fault::EvictVolatile | Fault::SlotMigration => &["maxmemory"],
        // A server that does not run cannot be stopped.
        Fault::Restart => &["server"],
        // The clock that can be set has a server without persistence.
        Fault::RestartEverysec | Fault::RestartAlways => &["server", "clock"],
        Fault::ClockForward => &["clock"],
        // A pause ends at a time of the server's clock: if that is set back, it lasts for longer.
        Fault::ClockBack => &["clock", "pause"],
        Fault::ClientPause => &["pause"],
        Fault::ServerStopped => &["server"],
        Fault::ClientStopped | Fault::ClientKilled => &["workers"],
        Fault::HostSuspended => &["server", "workers"],
        _ => &[],
    }
}

fn fit(one: Fault, other: Fault) -> bool {
    let places = match (place(one), place(other)) {
        (Place::Own, at) | (at, Place::Own) => at == Place::Anywhere,
        _ => true,
    };
    one != other && places && !parts(one).iter().any(|part| parts(other).contains(part))
}

fn draw(random: &mut StdRng) -> ([Fault; 2], Vec<Vec<Strike>>) {
    let all = &Fault::ALL[1..];
    let faults = loop {
        let mut one = || all[random.random_range(0..all.len())];
        let faults = [one(), one()];
        if fit(faults[0], faults[1]) {
            break faults;
        }
    };
    let mut round = || {
        let mut ms = |range| Duration::from_millis(random.random_range(range));
        let lengths = [ms(LENGTHS), ms(LENGTHS)];
        // The second one begins before the first one has ended.
        let later = ms(0..u64::try_from(lengths[0].as_millis()).unwrap());
        let strike = |number: usize, after| Strike { fault: faults[number], after, lasts: lengths[number] };
        vec![strike(0, Duration::ZERO), strike(1, later)]
    };
    (faults, (0..ROUNDS).map(|_| round()).collect())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_at_once() {
    let first = number("FAULTS_SEED").unwrap_or_else(|| rand::random_range(0..1 << 32));
    let lasts = Duration::from_secs(number("FAULTS_SECONDS").unwrap_or(5));
    let began = Instant::now();
    for seed in first.. {
        let (faults, rounds) = draw(&mut StdRng::seed_from_u64(seed));
        let name = format!("{:?}+{:?}.{seed}", faults[0], faults[1]);
        println!("FAULTS_SEED={seed}: {rounds:?}");
        run_rounds(&format!("{} and {}", faults[0], faults[1]), &name, &faults, rounds).await;
        if began.elapsed() >= lasts {
            return;
        }
    }
}

#[test]
fn a_seed_draws_the_same_scene() {
    let scene = |seed| format!("{:?}", draw(&mut StdRng::seed_from_u64(seed)));
    assert_eq!(scene(1), scene(1));
    assert_ne!(scene(1), scene(2));
    // Each fault is part of some pair.
    for fault in &Fault::ALL[1..] {
        assert!(Fault::ALL[1..].iter().any(|other| fit(*fault, *other)), "{fault:?}");
    }
}
