//! Limits over several processes.
//!
//! Each process asks the referee for the time before and after each request. What is admitted happened in between, so a span from
//! the beginning of one request to the end of another holds all that lies within it for certain: in every such span no more than
//! `burst + rate·t` may be admitted.

use std::path::Path;
use std::time::{Duration, SystemTime};

use support::interval_bound::{Bound, Interval, Span};
use support::processes::{Child, setting, tell};
use support::role;
use tower_distributed::{Quota, TokenBucket};

use crate::fleet::{Fleet, Referee, store_of_role};

const CALLERS: usize = 8;

/// What is allowed.
#[derive(Clone, Copy)]
struct Rules {
    rate: u32,
    burst: u32,
    /// For how long tokens are held that are charged ahead, ms; 0: none are.
    hold: u32,
}

/// Seconds.
fn wall_clock() -> i64 {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    now.as_secs().try_into().unwrap()
}

// Tells its time, and then of each admission from when to when it took, until it is killed.
role!(role_caller, threads = 1, async {
    tell(&wall_clock().to_string());
    let number = |name: &str| setting(name).parse::<u32>().unwrap();
    let quota = Quota::per_second(number("RATE")).burst(number("BURST"));
    let mut bucket = TokenBucket::new(&store_of_role(), "fleet", quota).unwrap();
    // Where tokens are charged ahead, callers come in bursts: while a bucket is empty there is nothing to charge.
    let mut pause = Duration::ZERO;
    if number("HOLD_MS") > 0 {
        let hold = Duration::from_millis(number("HOLD_MS").into());
        bucket = bucket.cache_refusals(true).prefetch(hold).unwrap();
        pause = hold + Duration::from_millis(10);
    }
    let (bucket, referee) = (&bucket, &Referee::of_role().await);
    let call_again_and_again = async |_| {
        for asked in 1_u64.. {
            if !pause.is_zero() && asked.is_multiple_of(8) {
                tokio::time::sleep(pause).await;
            }
            let from = referee.time().await;
            let decision = bucket.allow("k").await;
            let to = referee.time().await;
            if let Some(admitted) = decision.ok().filter(|decision| decision.is_admitted()) {
                tell(&format!("{from} {to} {}", u8::from(admitted.is_local)));
            }
        }
    };
    futures::future::join_all((0..CALLERS).map(call_again_and_again)).await;
});

/// From when to when, and whether by tokens that were charged ahead.
type Admission = (u64, u64, bool);

fn admission(line: &str) -> Admission {
    let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
    let mut next = || numbers.next().unwrap();
    (next(), next(), next() == 1)
}

/// What a child has told until it is killed.
async fn kill(mut child: Child) -> Vec<Admission> {
    child.kill9();
    let mut admissions = Vec::new();
    while let Some(line) = child.try_next_line().await {
        admissions.push(admission(&line));
    }
    admissions
}

/// At most `burst + rate·t + rate·hold` in every span.
fn judge(rules: Rules, admissions: &[Admission]) {
    let Rules { rate, burst, hold } = rules;
    let bound = Bound {
        burst: burst.into(),
        tokens: rate.into(),
        period_us: 1_000_000,
        extra_us: u64::from(hold) * 1000,
        drift_ppm: 0,
    };
    let spans: Vec<_> = admissions.iter().map(|&(from, to, _)| (from, to)).collect();
    let worst = bound.worst(&spans).expect("something was admitted");
    assert!(
        bound.allows(worst),
        "{worst:?}, allowed {}",
        bound.allowed(worst)
    );
}

/// The check finds what counting every interval finds.
#[test]
fn the_worst_interval_is_the_one_that_counting_finds() {
    let bound = Bound {
        burst: 3,
        tokens: 2,
        period_us: 7,
        extra_us: 1,
        drift_ppm: 1000,
    };
    let excess = |from, to, admitted: usize| {
        let interval = Interval {
            from,
            to,
            admitted: admitted as u64,
        };
        (
            admitted as f64 - bound.allowed(interval),
            bound.allows(interval),
        )
    };
    let mut broken = 0;
    for size in 1..40 {
        let spans: Vec<Span> = (0..size)
            .map(|_| {
                let from = rand::random_range(0..40);
                (from, from + rand::random_range(0..12))
            })
            .collect();
        let counted = |from, to| {
            spans
                .iter()
                .filter(|span| span.0 >= from && span.1 <= to)
                .count()
        };
        let all = spans
            .iter()
            .flat_map(|one| spans.iter().map(move |other| (one.0, other.1)));
        // An empty one says nothing, though it may be further from the bound than any other.
        let within = all
            .map(|(from, to)| (from, to, counted(from, to)))
            .filter(|&(.., count)| count > 0);
        let most = within
            .map(|(from, to, count)| excess(from, to, count))
            .max_by(|one, other| one.0.total_cmp(&other.0))
            .unwrap();
        let found = bound.worst(&spans).unwrap();
        assert_eq!(counted(found.from, found.to) as u64, found.admitted);
        assert!(
            (excess(found.from, found.to, found.admitted as usize).0 - most.0).abs() < 1e-9,
            "{spans:?}"
        );
        assert_eq!(bound.allows(found), most.1, "{spans:?}");
        broken += u32::from(!most.1);
    }
    assert!((1..39).contains(&broken), "{broken} of 39 were broken");
}

/// Where Debian has the library that lies about the time; tests/setup.sh checks that it is there.
fn libfaketime() -> Option<String> {
    let arch = std::env::consts::ARCH;
    let path = format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketime.so.1");
    if Path::new(&path).exists() {
        return Some(path);
    }
    println!("SKIPPED: {path} is missing, so no clock is wrong");
    None
}

/// Starts a caller whose clock is ahead by so many seconds.
async fn caller(fleet: &Fleet, Rules { rate, burst, hold }: Rules, ahead: i64) -> Child {
    let library = libfaketime().filter(|_| ahead != 0);
    let ahead = if library.is_some() { ahead } else { 0 };
    let [rate, burst, hold] = [rate, burst, hold].map(|number| number.to_string());
    let offset = format!("{ahead:+}s");
    let mut env = vec![("RATE", &*rate), ("BURST", &*burst), ("HOLD_MS", &*hold)];
    if let Some(library) = &library {
        env.extend([("LD_PRELOAD", &**library), ("FAKETIME", &*offset)]);
        env.push(("FAKETIME_DONT_FAKE_MONOTONIC", "1"));
    }
    let mut child = fleet.spawn("limits::role_caller", &env);
    let told: i64 = child.next_line().await.parse().unwrap();
    let wrong = told - wall_clock() - ahead;
    assert!(
        wrong.abs() < 500,
        "its clock is ahead by {} s instead of {ahead} s",
        wrong + ahead
    );
    child
}

/// Four processes: one is killed and another takes its place, one is stopped in each round, and the clocks of two are wrong by so
/// many seconds. In each round, so many calls are admitted while one is stopped, and so many of that one afterwards.
async fn admitted(
    rules: Rules,
    wrong: i64,
    rounds: usize,
    (meanwhile, afterwards): (usize, usize),
) -> Vec<Admission> {
    let fleet = &Fleet::start().await;
    let start = |ahead| caller(fleet, rules, ahead);
    let (mut killed, mut stopped) = (start(0).await, start(0).await);
    let (mut behind, ahead) = (start(-wrong).await, start(wrong).await);
    let mut all = Vec::new();
    for round in 0..rounds {
        // It is at work.
        all.push(admission(&killed.next_line().await));
        if round == 1 {
            all.extend(kill(killed).await);
            killed = start(0).await;
        }
        stopped.pause();
        for _ in 0..meanwhile {
            all.push(admission(&behind.next_line().await));
        }
        stopped.resume();
        for _ in 0..afterwards {
            all.push(admission(&stopped.next_line().await));
        }
    }
    for child in [killed, stopped, behind, ahead] {
        all.extend(kill(child).await);
    }
    all
}

#[tokio::test]
async fn processes_together_keep_to_the_limit() {
    let rules = Rules {
        rate: 200,
        burst: 40,
        hold: 0,
    };
    judge(rules, &admitted(rules, 1000, 3, (60, 20)).await);
}

/// At a rate at which the key is hot in each process.
#[tokio::test]
async fn charging_ahead_keeps_to_its_bound_whoever_is_killed_or_stopped() {
    let rules = Rules {
        rate: 3000,
        burst: 600,
        hold: 50,
    };
    let all = admitted(rules, 0, 6, (400, 50)).await;
    let ahead = all.iter().filter(|(_, _, ahead)| *ahead).count();
    println!(
        "{} admitted, {ahead} of them by tokens that were charged ahead",
        all.len()
    );
    assert!(ahead > 1000, "only {} admitted, {ahead} ahead", all.len());
    judge(rules, &all);
}
