//! Locks that are granted twice, since a master dies before its replica has them.

use std::ops::Range;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;
use tower_distributed::mutex::MutexGuard;
use tower_distributed::{Mutex, Store, StoreBuilder};

use crate::common::Bench;
use crate::common::report::figure;
use crate::common::settings::seconds;
use support::eventually;
use support::sentinel::Sentinel;

const WITH: &str = "double-grants-with-wait";
const WITHOUT: &str = "double-grants-without-wait";

/// How many locks are asked for while the replica stands still.
const LOCKS: u64 = 64;
const TTL: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(30);

/// How long the replica stands still before the master is killed.
const CUT_OFF: Duration = Duration::from_millis(400);

pub fn run(bench: &Bench) {
    let kills = seconds("KILLS", 3.0).unwrap().as_secs();
    let wait = |builder: StoreBuilder| builder.replicas(1, Duration::from_millis(200));
    for (name, with) in [(WITH, true), (WITHOUT, false)] {
        if !bench.settings.wants(name) {
            continue;
        }
        let (mut twice, mut granted) = (0, 0);
        for _ in 0..kills {
            let of = bench
                .runtime
                .block_on(kill(|builder| if with { wait(builder) } else { builder }));
            (twice, granted) = (twice + of.0, granted + of.1);
        }
        eprintln!(
            "{name}: {kills} kills, {granted} locks granted before, {twice} of them granted again after"
        );
        figure(
            name,
            &format!("locks granted again, of {granted}, after {kills} kills of a master"),
            twice as f64,
        );
    }
}

/// How many locks were granted twice, and how many once at least.
async fn kill(durable: impl Fn(StoreBuilder) -> StoreBuilder) -> (usize, usize) {
    let sentinel = Sentinel::start().await;
    let store = durable(Store::builder());
    let one = mutex(
        &store
            .sentinel(sentinel.sentinel_urls(), sentinel.service_name())
            .unwrap(),
    );
    eventually("the replica to be in step", SOON, async || {
        one.try_lock("first").await.is_ok()
    })
    .await;
    let replica = sentinel.replica();
    let before = ask(&one, 0..LOCKS).await;
    // It lives, but gets nothing more: it cannot log in to the master again.
    replica.cli(&["CONFIG", "SET", "masterauth", "wrong"]);
    replica.cli(&["CLIENT", "KILL", "TYPE", "master"]);
    let (during, ()) = tokio::join!(ask(&one, LOCKS..2 * LOCKS), sleep(CUT_OFF));
    sentinel.kill_master().await;
    let again = mutex(&Store::redis(&replica.url()).unwrap());
    eventually("the new master to serve", SOON, async || {
        again.try_lock("last").await.is_ok()
    })
    .await;
    let (mut twice, mut granted) = (0, 0);
    for (key, guard) in before.into_iter().chain(during) {
        granted += 1;
        let second = again.try_lock(key).await;
        twice += usize::from(second.is_ok() && guard.is_held());
    }
    (twice, granted)
}

async fn ask(mutex: &Mutex, keys: Range<u64>) -> Vec<(u64, MutexGuard)> {
    let ask = async |key| Some((key, mutex.try_lock(key).await.ok()?));
    join_all(keys.map(ask))
        .await
        .into_iter()
        .flatten()
        .collect()
}

fn mutex(store: &Store) -> Mutex {
    Mutex::builder().ttl(TTL).build(store, "bench").unwrap()
}
