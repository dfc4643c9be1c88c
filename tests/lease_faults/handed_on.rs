//! Several wait in one process, which may hand on what it was granted by itself: that promises no more than was
//! granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout};
use tower_distributed::Store;

use crate::kinds::{Family, IN_TIME, LONG, SOON, Taken, left, open};
use support::eventually;
use support::keys::keys_without_ttl;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// So many wait in one process, and hand in what they get; those who meet an outage get nothing.
async fn crowd(
    server: &RedisServer,
    far: &Family,
    key: &str,
    waiters: u64,
) -> UnboundedReceiver<(Taken, bool)> {
    let (sender, taken) = unbounded_channel();
    for _ in 0..waiters {
        let (far, key, sender) = (far.clone(), key.to_owned(), sender.clone());
        let mut waiter = Box::pin(async move {
            if let Ok(taken) = far.take(&key).await {
                let is_held = taken.is_held();
                let _ = sender.send((taken, is_held));
            }
        });
        assert!(poll!(waiter.as_mut()).is_pending(), "it has not waited");
        tokio::spawn(waiter);
    }
    eventually("all to wait", SOON, async || far.waiting(server, key) == far.places(waiters)).await;
    taken
}

async fn next(taken: &mut UnboundedReceiver<(Taken, bool)>) -> Taken {
    let (taken, was_held) = timeout(IN_TIME, taken.recv()).await.expect("a waiter is forgotten").unwrap();
    assert!(was_held, "it got what was over");
    taken
}

/// Who was to hand it on has lost it, and keeps its guard: those behind it need not wait for that.
#[tokio::test]
async fn nobody_waits_behind_who_has_lost_it() {
    let server = RedisServer::start().await;
    let near = Family::each(&open(&server.url()), LONG);
    let far = Family::each(&open(&server.url()), LONG);
    let served = near.iter().zip(&far).map(|(near, far)| async {
        let mut tries = 0;
        while !is_passed_on(&server, near, far, &format!("try {tries}")).await {
            tries += 1;
            assert!(tries < 10, "no grant is ever confirmed");
        }
    });
    join_all(served).await;
    eventually("nothing to be left", SOON, async || left(&server, "try *").is_empty()).await;
}

/// Returns false if this process was paused for as long as a grant lasts, before it confirmed the first one.
async fn is_passed_on(server: &RedisServer, near: &Family, far: &Family, key: &str) -> bool {
    let holder = near.take(key).await.unwrap();
    let mut taken = crowd(server, far, key, 3).await;
    // How long this process stood still at most since then.
    let mut last_ran = Instant::now();
    let mut longest_pause = Duration::ZERO;
    assert!(holder.release().await.unwrap());
    let (first, _) = timeout(IN_TIME, taken.recv()).await.expect("a waiter is forgotten").unwrap();
    let got = Instant::now();
    // It has confirmed what it was granted, and a beat has passed: by now all know that it is good for long.
    let is_good = || first.until() > got + LONG / 2 && got.elapsed() > Duration::from_secs(3);
    eventually("it to be renewed", SOON, async || {
        longest_pause = longest_pause.max(last_ran.elapsed());
        last_ran = Instant::now();
        is_good() || !first.is_held()
    })
    .await;
    if !first.is_held() {
        assert!(longest_pause > Duration::from_secs(1), "it was lost, though the process was not paused");
        return false;
    }
    server.cli(&["DEL", &far.holders(key)]);
    assert!(first.extend().await.unwrap_err().is_lost());
    let second = next(&mut taken).await;
    assert!(second.is_held() && !first.is_held());
    assert!(!first.release().await.unwrap());
    assert!(second.release().await.unwrap());
    assert!(next(&mut taken).await.release().await.unwrap());
    true
}

/// Cut off, the process may hand it on, and nobody there holds it any more when another process gets it.
#[tokio::test]
async fn who_is_cut_off_hands_on_no_more_than_was_granted() {
    const TTL: Duration = Duration::from_secs(2);
    let server = RedisServer::start().await;
    let near = Family::each(&open(&server.url()), TTL);
    let cases = (0..6).map(|case| cut_off(&server, &near[case % 3], case % 3, TTL, case < 3));
    join_all(cases).await;
}

async fn cut_off(server: &RedisServer, near: &Family, kind: usize, ttl: Duration, runs_out: bool) {
    let proxy = FaultProxy::start(server.port()).await;
    let far = &Family::each(&open(&proxy.url()), ttl)[kind];
    let key = &format!("runs out {runs_out}");
    let holder = near.take(key).await.unwrap();
    let mut taken = crowd(server, far, key, 3).await;
    assert!(holder.release().await.unwrap());
    let first = next(&mut taken).await;
    proxy.cut();
    if runs_out {
        timeout(SOON, first.lost()).await.expect("it does not run out");
    }
    // Those behind may get what is left of it now, or ask when the way is free again.
    drop(first);
    let other = timeout(SOON, near.take(key)).await.expect("it does not run out").unwrap();
    let mut cut_off = Vec::new();
    while let Ok((second, was_held)) = taken.try_recv() {
        assert!(was_held, "it got what was over");
        assert!(!second.is_held(), "two hold {}", near.name());
        cut_off.push(second);
    }
    assert!(other.is_held());
    proxy.heal();
    assert!(other.release().await.unwrap());
    drop(cut_off);
    while let Ok(Some(rest)) = timeout(SOON, taken.recv()).await {
        drop(rest);
    }
    eventually("nothing to be left", SOON, async || left(server, key).is_empty()).await;
}

/// Who holds a key, as the test sees it, until this is dropped: before its lease is.
struct Alone<'a>(&'a AtomicBool);

impl<'a> Alone<'a> {
    fn begin(held: &'a AtomicBool) -> Self {
        assert!(!held.swap(true, Ordering::SeqCst), "two hold a key");
        Self(held)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Of two crowds many go away, while they wait, as they are woken, or later. All others get it, one at a time, each
/// with a greater fence than those before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_which_many_leave_is_served() {
    const CROWD: usize = 60;
    let server = RedisServer::start().await;
    let stores = [(); 2].map(|()| open(&server.url()));
    let alone = Family::each(&Store::in_memory(), LONG);
    let [near, far] = stores.map(|store| Family::each(&store, LONG));
    for round in 0..8 {
        for kind in 0..near.len() {
            let families = if round == 7 { [&alone[kind]; 2] } else { [&near[kind], &far[kind]] };
            let (held, last) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
            let holder = families[0].take("k").await.unwrap();
            let mut stay = Vec::new();
            let mut leave = Vec::new();
            for caller in 0..CROWD {
                // Sometimes long rows of one process, sometimes turn and turn about.
                let family = families[caller / [1, 7, 30][round % 3] % 2].clone();
                let (held, last) = (held.clone(), last.clone());
                let caller = tokio::spawn(async move {
                    let taken = family.take("k").await.unwrap();
                    let alone = Alone::begin(&held);
                    if let Some(fence) = taken.handle().fence() {
                        assert!(last.swap(fence, Ordering::SeqCst) < fence, "a fence that does not rise");
                    }
                    tokio::task::yield_now().await;
                    drop(alone);
                    assert!(taken.release().await.unwrap());
                });
                if rand::random_bool(0.4) { leave.push(caller) } else { stay.push(caller) }
            }
            assert!(holder.release().await.unwrap());
            for caller in leave {
                tokio::task::yield_now().await;
                caller.abort();
                assert!(!caller.await.is_err_and(|error| error.is_panic()));
            }
            for outcome in timeout(IN_TIME, join_all(stay)).await.expect("a waiter is forgotten") {
                outcome.unwrap();
            }
        }
    }
    eventually("nothing to be left", SOON, async || left(&server, "k").is_empty()).await;
    assert_eq!(keys_without_ttl(&server), [""; 0]);
}
