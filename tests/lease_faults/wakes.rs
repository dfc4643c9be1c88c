//! Messages that wake who waits are lost: the timers behind them serve everybody in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deadpool_redis::Pool;
use futures::future::join_all;
use tokio::time::{interval, sleep, timeout};
use tower_distributed::Store;

use crate::kinds::{Family, IN_TIME, LONG, SOON, open, subscribed};
use support::eventually;
use support::keys::keys_without_ttl;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

fn pool(server: &RedisServer) -> Pool {
    support::pools::pool(server.url())
}

fn kill_subscriptions(server: &RedisServer) -> u64 {
    server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap()
}

/// Two processes contend for a key of each kind; after each kill everybody is served again before the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_subscriptions_lose_nobody() {
    const KILLS: u64 = 60;
    let server = RedisServer::start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let (mut callers, mut served) = (Vec::new(), Vec::<Arc<AtomicU64>>::new());
    let stores = [open(&server.url()), open(&server.url())];
    let [one, other] = stores.map(|store| Family::each(&store, LONG));
    for families in one.into_iter().zip(other) {
        let held = Arc::new(AtomicBool::new(false));
        for caller in 0..8 {
            let family = if caller % 2 == 0 { families.0.clone() } else { families.1.clone() };
            let (stop, held, turns) = (stop.clone(), held.clone(), Arc::new(AtomicU64::new(0)));
            served.push(turns.clone());
            callers.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let taken = family.take("k").await.unwrap();
                    assert!(!held.swap(true, Ordering::SeqCst), "two hold {}", family.name());
                    tokio::task::yield_now().await;
                    held.store(false, Ordering::SeqCst);
                    assert!(taken.release().await.unwrap());
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
    }
    let (mut killed, mut longest) = (0, Duration::ZERO);
    for _ in 0..KILLS {
        eventually("the subscriptions", SOON, async || subscribed(&server) == 2).await;
        killed += kill_subscriptions(&server);
        let began = Instant::now();
        let before: Vec<_> = served.iter().map(|turns| turns.load(Ordering::Relaxed)).collect();
        eventually("everybody to be served again", IN_TIME, async || {
            served.iter().zip(&before).all(|(turns, before)| turns.load(Ordering::Relaxed) > *before)
        })
        .await;
        longest = longest.max(began.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    println!("{killed} subscriptions killed, everybody served within {longest:?}");
    assert_eq!(killed, 2 * KILLS);
    assert_eq!(keys_without_ttl(&server), [""; 0]);
}

/// The waits for a key from a release, while somebody of the other process waits, to the next holder. One process has
/// `callers` callers for each key, and so has the other. All subscriptions are killed every 200 ms.
async fn hand_overs_under_kills(callers: usize) -> Vec<Duration> {
    const KILL_EVERY: Duration = Duration::from_millis(200);
    const KILLS: u32 = 30;
    let server = RedisServer::start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let families = [open(&server.url()), open(&server.url())].map(|store| Family::each(&store, LONG));
    let keys: [Arc<HandOvers>; 3] = Default::default();
    let mut tasks = Vec::new();
    for (process, families) in families.into_iter().enumerate() {
        for (family, key) in families.into_iter().zip(&keys) {
            for _ in 0..callers {
                let (stop, family, key) = (stop.clone(), family.clone(), key.clone());
                tasks.push(tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        key.waits(process);
                        let taken = family.take("k").await.unwrap();
                        key.holds(process);
                        sleep(Duration::from_millis(10)).await;
                        key.released(process);
                        assert!(taken.release().await.unwrap());
                    }
                }));
            }
        }
    }
    eventually("the subscriptions", SOON, async || subscribed(&server) == 2).await;
    let mut every = interval(KILL_EVERY);
    let mut killed = 0;
    for _ in 0..KILLS {
        every.tick().await;
        killed += kill_subscriptions(&server);
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    println!("{killed} subscriptions killed by {KILLS} kills");
    let gaps = |key: &Arc<HandOvers>| lock(&key.0).gaps.clone();
    keys.iter().flat_map(gaps).collect()
}

/// The hand-overs of a key between two processes.
#[derive(Debug, Default)]
struct HandOvers(std::sync::Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// How many wait, by process.
    waiting: [usize; 2],
    /// When the key was released, and the other process waited.
    released: Option<Instant>,
    gaps: Vec<Duration>,
}

impl HandOvers {
    fn waits(&self, process: usize) {
        lock(&self.0).waiting[process] += 1;
    }

    fn holds(&self, process: usize) {
        let mut seen = lock(&self.0);
        seen.waiting[process] -= 1;
        let gap = seen.released.take().map(|released| released.elapsed());
        seen.gaps.extend(gap);
    }

    fn released(&self, process: usize) {
        let mut seen = lock(&self.0);
        seen.released = (seen.waiting[1 - process] > 0).then(Instant::now);
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Subscriptions that live for 200 ms at most lose messages all the time. Who waits asks while there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_subscriptions_hold_no_hand_over_up() {
    for callers in [1, 4] {
        let mut gaps = hand_overs_under_kills(callers).await;
        gaps.sort();
        let at = |percent: usize| gaps[(gaps.len() - 1) * percent / 100];
        let (count, median, p99, longest) = (gaps.len(), at(50), at(99), at(100));
        println!(
            "{callers} callers: {count} hand-overs, median {median:?}, p99 {p99:?}, longest {longest:?}"
        );
        assert!(count > 0, "nothing was handed over");
    }
}

/// The message goes to a connection that is just being killed. Once there is another, who waits asks by itself.
#[tokio::test]
async fn a_subscription_killed_before_a_release_holds_nobody_up() {
    let server = RedisServer::start().await;
    let (near, far) = (open(&server.url()), open(&server.url()));
    let mut waits = Vec::new();
    for round in 0..12 {
        for (near, far) in Family::each(&near, LONG).into_iter().zip(Family::each(&far, LONG)) {
            let holder = near.take("k").await.unwrap();
            let waiter = tokio::spawn({
                let far = far.clone();
                async move { far.take("k").await.unwrap().release().await.unwrap() }
            });
            eventually("the waiter to wait", SOON, async || {
                near.waiting(&server, "k") == 1 && subscribed(&server) == 1
            })
            .await;
            // Before or after it is granted to the waiter.
            if round % 2 == 0 {
                kill_subscriptions(&server);
            }
            let began = Instant::now();
            let released = tokio::spawn(holder.release());
            if round % 2 == 1 {
                kill_subscriptions(&server);
            }
            assert!(timeout(IN_TIME, waiter).await.expect("the waiter is forgotten").unwrap());
            waits.push(began.elapsed());
            assert!(released.await.unwrap().unwrap());
        }
    }
    waits.sort();
    println!("wait after a kill: {:?}, at most {:?}", waits[waits.len() / 2], waits[waits.len() - 1]);
}

/// The connection stands, and carries nothing: waiters find by their beats what was granted to them.
#[tokio::test]
async fn a_lost_message_costs_one_beat() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let near = Family::each(&open(&server.url()), LONG);
    let far = Store::builder().wakeups(proxy.url()).pool(pool(&server)).unwrap();
    let far = Family::each(&far, LONG);
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for key in 0..8 {
        for (near, far) in near.iter().zip(&far) {
            let (key, far) = (key.to_string(), far.clone());
            holders.push((near, key.clone(), near.take(&key).await.unwrap()));
            waiters.push(tokio::spawn(async move {
                let taken = far.take(&key).await.unwrap();
                let served = Instant::now();
                assert!(taken.release().await.unwrap());
                served
            }));
        }
    }
    eventually("all to wait", SOON, async || {
        subscribed(&server) == 1 && holders.iter().all(|(near, key, _)| near.waiting(&server, key) == 1)
    })
    .await;
    proxy.stall();
    // At all phases of a beat.
    let mut every_90_ms = tokio::time::interval(Duration::from_millis(90));
    let mut released = Vec::new();
    for (_, _, holder) in holders {
        every_90_ms.tick().await;
        released.push(Instant::now());
        assert!(holder.release().await.unwrap());
    }
    let served = timeout(IN_TIME, join_all(waiters)).await.expect("a waiter is forgotten");
    let waits = served.into_iter().zip(released).map(|(served, released)| served.unwrap() - released);
    let longest = waits.max().unwrap();
    println!("longest wait without a message: {longest:?}");
    assert!(longest < IN_TIME, "{longest:?}");
    assert!(proxy.held_back() == 0, "the subscription was used for requests");
}

/// Each hand-over loses its message.
#[tokio::test]
async fn a_queue_behind_a_dead_subscription_moves() {
    const WAITERS: u64 = 3;
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let near = Family::each(&open(&server.url()), LONG);
    let far = Store::builder().wakeups(proxy.url()).pool(pool(&server)).unwrap();
    let far = Family::each(&far, LONG);
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for (near, far) in near.iter().zip(&far) {
        holders.push(near.take("k").await.unwrap());
        for _ in 0..WAITERS {
            let far = far.clone();
            waiters.push(tokio::spawn(async move { far.take("k").await.unwrap().release().await.unwrap() }));
        }
    }
    eventually("all to wait", SOON, async || {
        subscribed(&server) == 1 && near.iter().all(|near| near.waiting(&server, "k") == near.places(WAITERS))
    })
    .await;
    proxy.stall();
    let began = Instant::now();
    for holder in holders {
        assert!(holder.release().await.unwrap());
    }
    let served = timeout(3 * IN_TIME, join_all(waiters)).await.expect("a waiter is forgotten");
    assert!(served.into_iter().all(|released| released.unwrap()));
    println!("{WAITERS} hand-overs without a message: {:?}", began.elapsed());
}

/// A pool does not tell where to subscribe.
#[tokio::test]
async fn a_pool_without_wakeups_serves_by_asking() {
    let server = RedisServer::start().await;
    let stores = [Store::from(pool(&server)), Store::from(pool(&server))];
    let [near, far] = stores.map(|store| Family::each(&store, LONG));
    let mut longest = Duration::ZERO;
    for _ in 0..5 {
        for (near, far) in near.iter().zip(&far) {
            let holder = near.take("k").await.unwrap();
            let waiters = [near, far, near, far].map(|family| {
                let family = family.clone();
                tokio::spawn(async move { family.take("k").await.unwrap().release().await.unwrap() })
            });
            eventually("all to wait", SOON, async || near.waiting(&server, "k") == near.places(4)).await;
            let began = Instant::now();
            assert!(holder.release().await.unwrap());
            let served = timeout(IN_TIME, join_all(waiters)).await.expect("a waiter is forgotten");
            assert!(served.into_iter().all(|released| released.unwrap()));
            longest = longest.max(began.elapsed());
        }
    }
    println!("four hand-overs by asking: {longest:?}");
    assert_eq!(subscribed(&server), 0);
}
