//! Several processes on one Redis, with a referee who is no part of it.
//!
//! Each process asks the referee for the time (of a Redis of its own) before and after each request. What is
//! admitted happened in between, so a span from the beginning of one request to the end of another holds
//! all that lies within it for certain: in every such span no more than `burst + rate·t` may be admitted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use deadpool_redis::redis;
use support::processes::{Child, is_child, setting, tell};
use support::redis_server::RedisServer;
use tower_distributed::{Quota, Store, TokenBucket};

const RATE: u32 = 200;
const BURST: u32 = 40;
const CALLERS: usize = 8;

type Referee = redis::aio::MultiplexedConnection;

async fn time(referee: &mut Referee) -> i64 {
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(referee).await.unwrap();
    seconds * 1_000_000 + micros
}

/// Tells of each admission from when to when it took, until the parent ends it or `FOR_MS` are over.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "a role, started by the tests"]
async fn role_caller() {
    if !is_child() {
        return;
    }
    let store = Store::redis(&setting("URL")).unwrap();
    let bucket = TokenBucket::new(&store, "fleet", Quota::per_second(RATE).burst(BURST)).unwrap();
    let referee = redis::Client::open(setting("REFEREE")).unwrap();
    let referee = referee.get_multiplexed_async_connection().await.unwrap();
    let for_micros: i64 = setting("FOR_MS").parse::<i64>().unwrap() * 1000;
    let begin = time(&mut referee.clone()).await;
    let callers = (0..CALLERS).map(|_| {
        let (bucket, mut referee) = (bucket.clone(), referee.clone());
        tokio::spawn(async move {
            loop {
                let from = time(&mut referee).await;
                let admitted = bucket.allow("k").await.is_ok_and(|decision| decision.is_admitted());
                let to = time(&mut referee).await;
                if admitted {
                    tell(&format!("{from} {to}"));
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
}

/// What a child told, until it was done or killed.
async fn admissions(child: &mut Child) -> Vec<(i64, i64)> {
    let mut admissions = Vec::new();
    while let Some(line) = child.try_next_line().await {
        if line == "done" {
            break;
        }
        let (from, to) = line.split_once(' ').unwrap();
        admissions.push((from.parse().unwrap(), to.parse().unwrap()));
    }
    admissions
}

fn judge(mut admissions: Vec<(i64, i64)>) {
    admissions.sort_unstable();
    for (first, &(from, _)) in admissions.iter().enumerate() {
        let mut ends: Vec<_> = admissions[first..].iter().map(|&(_, to)| to).collect();
        ends.sort_unstable();
        for (count, to) in (1_i64..).zip(ends) {
            let most = i64::from(BURST) * 1_000_000 + i64::from(RATE) * (to - from);
            assert!(count * 1_000_000 <= most, "{count} admitted within {} µs", to - from);
        }
    }
}

struct Fleet {
    server: RedisServer,
    referee: RedisServer,
}

impl Fleet {
    async fn start() -> Self {
        Self { server: RedisServer::start().await, referee: RedisServer::start().await }
    }

    fn caller(&self, for_ms: &str, env: &[(&str, &str)]) -> Child {
        let (url, referee) = (self.server.url(), self.referee.url());
        let own = [("URL", url.as_str()), ("REFEREE", referee.as_str()), ("FOR_MS", for_ms)];
        Child::spawn("role_caller", &[&own[..], env].concat())
    }
}

#[tokio::test]
async fn processes_together_keep_to_the_limit() {
    let fleet = Fleet::start().await;
    let mut children: Vec<_> = (0..4).map(|_| fleet.caller("3000", &[])).collect();
    let mut all = Vec::new();
    for child in &mut children {
        all.extend(admissions(child).await);
    }
    // Not by refusing everybody: all that could be had in the three seconds was had, or nearly.
    assert!(all.len() > (BURST + RATE * 2) as usize, "only {} admitted", all.len());
    judge(all);
}

#[tokio::test]
async fn a_process_that_is_killed_or_stopped_changes_nothing() {
    let fleet = Fleet::start().await;
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
    assert!(all.len() > (BURST + RATE) as usize, "only {} admitted", all.len());
    judge(all);
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
    let fleet = Fleet::start().await;
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
    assert!(all.len() > (BURST + RATE * 2) as usize, "only {} admitted", all.len());
    judge(all);
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
