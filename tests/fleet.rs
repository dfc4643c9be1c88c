//! Several processes on one Redis, with a referee who is no part of it.
//!
//! Each process asks the referee for the time (of a Redis of its own) before and after each request. What is
//! admitted happened in between, so a span from the beginning of one request to the end of another holds
//! all that lies within it for certain: in every such span no more than `burst + rate·t` may be admitted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use deadpool_redis::redis;
use support::interval_bound::{Bound, Interval, Span};
use support::processes::{Child, is_child, setting, tell};
use support::redis_server::RedisServer;
use support::role;
use tower_distributed::{Quota, Store, TokenBucket};

const CALLERS: usize = 8;

/// What is allowed.
#[derive(Clone, Copy)]
struct Rules {
    rate: u32,
    burst: u32,
    /// For how long tokens are held that are charged ahead, ms; 0: none are.
    hold: u32,
}

const EXACT: Rules = Rules { rate: 200, burst: 40, hold: 0 };
/// A rate at which the key is hot in each of four processes.
const AHEAD: Rules = Rules { rate: 3000, burst: 600, hold: 50 };

type Referee = redis::aio::MultiplexedConnection;

async fn time(referee: &mut Referee) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(referee).await.unwrap();
    seconds * 1_000_000 + micros
}

// Tells of each admission from when to when it took, until the parent ends it or `FOR_MS` are over.
role!(role_caller, threads = 1, async {
    let store = Store::redis(&setting("URL")).unwrap();
    let number = |name: &str| setting(name).parse::<u32>().unwrap();
    let quota = Quota::per_second(number("RATE")).burst(number("BURST"));
    let mut bucket = TokenBucket::new(&store, "fleet", quota).unwrap();
    // Where tokens are charged ahead, callers come in bursts: while a bucket is empty there is nothing to charge.
    let mut pause = Duration::ZERO;
    if number("HOLD_MS") > 0 {
        let hold = Duration::from_millis(number("HOLD_MS").into());
        bucket = bucket.cache_refusals(true).prefetch(hold).unwrap();
        pause = hold + Duration::from_millis(10);
    }
    let referee = redis::Client::open(setting("REFEREE")).unwrap();
    // Whoever is stopped in between takes longer.
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let referee = referee.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
    let for_micros = setting("FOR_MS").parse::<u64>().unwrap() * 1000;
    let begin = time(&mut referee.clone()).await;
    let callers = (0..CALLERS).map(|_| {
        let (bucket, mut referee) = (bucket.clone(), referee.clone());
        tokio::spawn(async move {
            for asked in 1.. {
                if !pause.is_zero() && asked % 8 == 0 {
                    tokio::time::sleep(pause).await;
                }
                let from = time(&mut referee).await;
                let decision = bucket.allow("k").await;
                let to = time(&mut referee).await;
                if let Ok(admitted) = decision
                    && admitted.is_admitted()
                {
                    tell(&format!("{from} {to} {}", u8::from(admitted.is_local)));
                }
                if to > begin + for_micros {
                    return;
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    tell("done");
});

/// From when to when, and whether by tokens that were charged ahead.
type Admission = (u64, u64, bool);

fn admission(line: &str) -> Admission {
    let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
    let mut next = || numbers.next().unwrap();
    (next(), next(), next() == 1)
}

/// What a child told, until it was done or killed.
async fn admissions(child: &mut Child) -> Vec<Admission> {
    let mut admissions = Vec::new();
    while let Some(line) = child.try_next_line().await {
        if line == "done" {
            break;
        }
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
    assert!(bound.allows(worst), "{worst:?}, allowed {}", bound.allowed(worst));
}

/// The check finds what counting every interval finds.
#[test]
fn the_worst_interval_is_the_one_that_counting_finds() {
    let bound = Bound { burst: 3, tokens: 2, period_us: 7, extra_us: 1, drift_ppm: 1000 };
    let excess = |from, to, admitted: usize| {
        let interval = Interval { from, to, admitted: admitted as u64 };
        (admitted as f64 - bound.allowed(interval), bound.allows(interval))
    };
    let mut broken = 0;
    for size in 1..40 {
        let spans: Vec<Span> = (0..size)
            .map(|_| {
                let from = rand::random_range(0..40);
                (from, from + rand::random_range(0..12))
            })
            .collect();
        let counted = |from, to| spans.iter().filter(|span| span.0 >= from && span.1 <= to).count();
        let all = spans.iter().flat_map(|one| spans.iter().map(move |other| (one.0, other.1)));
        // An empty one says nothing, though it may be further from the bound than any other.
        let within = all.map(|(from, to)| (from, to, counted(from, to))).filter(|&(.., count)| count > 0);
        let most = within
            .map(|(from, to, count)| excess(from, to, count))
            .max_by(|one, other| one.0.total_cmp(&other.0))
            .unwrap();
        let found = bound.worst(&spans).unwrap();
        assert_eq!(counted(found.from, found.to) as u64, found.admitted);
        assert!((excess(found.from, found.to, found.admitted as usize).0 - most.0).abs() < 1e-9, "{spans:?}");
        assert_eq!(bound.allows(found), most.1, "{spans:?}");
        broken += u32::from(!most.1);
    }
    assert!((1..39).contains(&broken), "{broken} of 39 were broken");
}

struct Fleet {
    rules: Rules,
    server: RedisServer,
    referee: RedisServer,
}

impl Fleet {
    async fn start(rules: Rules) -> Self {
        Self { rules, server: RedisServer::start().await, referee: RedisServer::start().await }
    }

    fn caller(&self, for_ms: &str, env: &[(&str, &str)]) -> Child {
        let (url, referee) = (self.server.url(), self.referee.url());
        let Rules { rate, burst, hold } = self.rules;
        let [rate, burst, hold] = [rate, burst, hold].map(|number| number.to_string());
        let own = [
            ("URL", url.as_str()),
            ("REFEREE", &referee),
            ("FOR_MS", for_ms),
            ("RATE", &rate),
            ("BURST", &burst),
            ("HOLD_MS", &hold),
        ];
        Child::spawn("role_caller", &[&own[..], env].concat())
    }
}

#[tokio::test]
async fn processes_together_keep_to_the_limit() {
    let fleet = Fleet::start(EXACT).await;
    let mut children: Vec<_> = (0..4).map(|_| fleet.caller("3000", &[])).collect();
    let mut all = Vec::new();
    for child in &mut children {
        all.extend(admissions(child).await);
    }
    // Not by refusing everybody: all that could be had in the three seconds was had, or nearly.
    assert!(all.len() > (EXACT.burst + EXACT.rate * 2) as usize, "only {} admitted", all.len());
    judge(EXACT, &all);
}

#[tokio::test]
async fn a_process_that_is_killed_or_stopped_changes_nothing() {
    let fleet = Fleet::start(EXACT).await;
    let mut killed = fleet.caller("60000", &[]);
    let mut stopped = fleet.caller("3000", &[]);
    let mut steady = fleet.caller("3000", &[]);
    // All three are at work.
    for child in [&mut killed, &mut stopped, &mut steady] {
        child.next_line().await;
    }
    killed.kill9();
    stopped.pause();
    let mut all = admissions(&mut steady).await;
    stopped.resume();
    all.extend(admissions(&mut stopped).await);
    all.extend(admissions(&mut killed).await);
    assert!(all.len() > (EXACT.burst + EXACT.rate) as usize, "only {} admitted", all.len());
    judge(EXACT, &all);
}

/// Tokens are charged ahead in four processes; one is killed and another takes its place, one is stopped again and again.
#[tokio::test]
async fn charging_ahead_keeps_to_its_bound_whoever_is_killed_or_stopped() {
    let fleet = Fleet::start(AHEAD).await;
    let mut killed = fleet.caller("60000", &[]);
    let mut stopped = fleet.caller("60000", &[]);
    let mut steady = [fleet.caller("60000", &[]), fleet.caller("60000", &[])];
    let mut all = Vec::new();
    // All four are at work.
    for child in [&mut killed, &mut stopped] {
        all.push(admission(&child.next_line().await));
    }
    for round in 0..6 {
        if round == 2 {
            killed.kill9();
            all.extend(admissions(&mut killed).await);
            killed = fleet.caller("60000", &[]);
        }
        stopped.pause();
        for _ in 0..400 {
            all.push(admission(&steady[0].next_line().await));
        }
        stopped.resume();
        for _ in 0..50 {
            all.push(admission(&stopped.next_line().await));
        }
    }
    let [one, other] = steady;
    for mut child in [killed, stopped, one, other] {
        child.kill9();
        all.extend(admissions(&mut child).await);
    }
    let ahead = all.iter().filter(|(_, _, ahead)| *ahead).count();
    println!("{} admitted, {ahead} of them by tokens that were charged ahead", all.len());
    assert!(ahead > 1000 && all.len() > 5000, "only {} admitted, {ahead} ahead", all.len());
    judge(AHEAD, &all);
}

/// Where Debian has the library that lies about the time; tests/run.sh installs it there.
fn libfaketime() -> Option<String> {
    let arch = std::env::consts::ARCH;
    let path = format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketime.so.1");
    if std::path::Path::new(&path).exists() {
        return Some(path);
    }
    println!("SKIPPED: {path} is missing, so no clock can be made to lie");
    None
}

#[tokio::test]
async fn a_client_whose_clock_is_wrong_makes_no_difference() {
    let Some(library) = libfaketime() else { return };
    let fleet = Fleet::start(EXACT).await;
    let lie = |offset| {
        [("LD_PRELOAD", library.as_str()), ("FAKETIME", offset), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]
    };
    let mut children =
        [fleet.caller("3000", &lie("-10s")), fleet.caller("3000", &[]), fleet.caller("3000", &lie("+10s"))];
    let mut all = Vec::new();
    for child in &mut children {
        let admissions = admissions(child).await;
        assert!(!admissions.is_empty(), "one of the clocks was left out");
        all.extend(admissions);
    }
    assert!(all.len() > (EXACT.burst + EXACT.rate * 2) as usize, "only {} admitted", all.len());
    judge(EXACT, &all);
}

/// The test above is about something: under the library the clock really is wrong.
#[test]
#[ignore = "a role, started by the tests"]
fn role_clock() {
    if is_child() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        tell(&now.as_secs().to_string());
    }
}

#[tokio::test]
async fn the_library_lies() {
    let Some(library) = libfaketime() else { return };
    let lie =
        [("LD_PRELOAD", library.as_str()), ("FAKETIME", "-1000s"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
    let told: u64 = Child::spawn("role_clock", &lie).next_line().await.parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let behind = now - Duration::from_secs(told);
    assert!(behind > Duration::from_secs(990), "{behind:?}");
}
