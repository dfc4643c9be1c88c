//! Jobs under a mutex: work that is dropped with its lock, and scheduled jobs that run once per tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::time::timeout;
use tower_distributed::mutex::MutexBuilder;
use tower_distributed::{Error, Mutex, Store};

use crate::stores::{Place, SOON};
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(5);
const AT_LEAST: Duration = Duration::from_millis(400);

/// Two hosts.
fn hosts(place: &Place, name: &str, builder: impl Fn() -> MutexBuilder) -> [Mutex; 2] {
    [(); 2].map(|()| builder().build(place, name).unwrap())
}

/// A host whose clock is late by less than `at_least_for` starts a job that another one has done already. A guard that is dropped, as
/// by a panic, keeps its lock as well; one that was held for long enough is released at once.
pub(crate) async fn a_short_job_keeps_its_lock(place: &Place, name: &str) {
    let hosts = hosts(place, name, || {
        Mutex::builder().ttl(TTL).at_least_for(AT_LEAST)
    });
    lock_is_kept(&hosts).await;
    let [here, there] = &hosts;
    let began = Instant::now();
    drop(here.lock("dropped").await.unwrap());
    let again = there.try_lock("dropped").await;
    assert!(began.elapsed() >= AT_LEAST || again.is_err_and(|error| error.is_refused()));
    let guard = there.lock("dropped").await.unwrap();
    assert!(began.elapsed() >= AT_LEAST, "{:?}", began.elapsed());
    tokio::time::sleep(AT_LEAST).await;
    assert!(guard.unlock().await.unwrap());
    assert!(
        !here.is_locked("dropped").await.unwrap(),
        "it was held for long enough"
    );
}

async fn lock_is_kept([early, late]: &[Mutex; 2]) {
    let began = Instant::now();
    let handle = early
        .try_lock("report")
        .await
        .unwrap()
        .run(async |lease| lease)
        .await
        .unwrap();
    assert!(!handle.is_held(), "for the job it has ended");
    timeout(SOON, handle.lost())
        .await
        .expect("the tasks of the job are told");
    let again = late.try_lock("report").await.map(drop);
    assert!(began.elapsed() >= AT_LEAST || again.unwrap_err().is_refused());
    eventually("the next tick to run", SOON, async || {
        late.try_lock("report").await.is_ok()
    })
    .await;
    assert!(began.elapsed() >= AT_LEAST, "{:?}", began.elapsed());
}

pub(crate) async fn a_tick_runs_once(place: &Place, name: &str) {
    let period = Duration::from_millis(800);
    let runs = Arc::new(AtomicUsize::new(0));
    let hosts = hosts(place, name, || Mutex::builder().ttl(TTL));
    let tick = async |host: &Mutex| {
        let job = || {
            let runs = Arc::clone(&runs);
            async move { runs.fetch_add(1, Ordering::SeqCst) + 1 }
        };
        host.once_per_tick("report", period, |_| job())
            .await
            .unwrap()
    };
    let began = Instant::now();
    let ran: Vec<_> = join_all((0..10).map(|n| tick(&hosts[n % 2])))
        .await
        .into_iter()
        .flatten()
        .collect();
    if began.elapsed() < period / 2 {
        assert_eq!(ran, [1]);
    }
    let first = ran.len();
    // At the next tick it runs again.
    eventually("the next tick to run", SOON, async || {
        tick(&hosts[1]).await == Some(first + 1)
    })
    .await;
    assert!(began.elapsed() >= period / 2, "{:?}", began.elapsed());
    // The value of a lock names its holder, such as its host: it is free for the next tick, and another tick is skipped.
    let name = &format!("{name}.value");
    for ran in [Some(()), None] {
        let host = Mutex::builder()
            .ttl(TTL)
            .value_with(|| "host-1".into())
            .build(place, name)
            .unwrap();
        assert_eq!(
            host.once_per_tick("report", 2 * SOON, async |_| ())
                .await
                .unwrap(),
            ran
        );
    }
}

/// A process that stood still, or whose lock was revoked, does not go on with what others may be at.
pub(crate) async fn work_ends_with_its_lock(place: &Place, name: &str) {
    let short = || {
        Mutex::builder()
            .ttl(Duration::from_millis(100))
            .watchdog(false)
    };
    let mutex = short().build(place, name).unwrap();
    let error = mutex
        .lock("k")
        .await
        .unwrap()
        .run(|_| std::future::pending::<()>())
        .await
        .unwrap_err();
    assert!(error.is_lost(), "{error}");
    // Without `run` it goes on.
    let guard = mutex.lock("k").await.unwrap();
    guard.lost().await;
    let outcome = guard.unlock().await;
    assert!(outcome.is_ok(), "{outcome:?}");
}

/// Hosts that start at the same moment, on a quorum whose votes they can split.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_quorum_a_tick_runs_once() {
    let nodes = [(); 3].map(|()| Store::in_memory());
    let hosts = [(); 4].map(|()| {
        Mutex::builder()
            .build_quorum(nodes.clone(), "jobs")
            .unwrap()
    });
    for tick in 0..20 {
        let runs = Arc::new(AtomicUsize::new(0));
        let start = Arc::new(tokio::sync::Barrier::new(hosts.len()));
        let hosts = hosts.iter().map(|host| {
            let (host, runs, start) = (host.clone(), Arc::clone(&runs), Arc::clone(&start));
            tokio::spawn(async move {
                start.wait().await;
                let job = |_| async move { runs.fetch_add(1, Ordering::SeqCst) };
                host.once_per_tick(format!("report-{tick}"), SOON, job)
                    .await
                    .unwrap()
            })
        });
        assert!(join_all(hosts).await.iter().all(Result::is_ok));
        assert_eq!(runs.load(Ordering::SeqCst), 1, "tick {tick}");
    }
}

#[tokio::test]
async fn a_quorum_keeps_the_lock_of_a_short_job() {
    let nodes = [(); 3].map(|()| Store::in_memory());
    let builder = || Mutex::builder().ttl(TTL).at_least_for(AT_LEAST).tries(1);
    lock_is_kept(&[(); 2].map(|()| builder().build_quorum(nodes.clone(), "jobs").unwrap())).await;
}

/// A process that ends after a short job leaves the lock behind, and does not wait for it.
#[tokio::test]
async fn the_lock_of_a_short_job_outlives_its_process() {
    let server = RedisServer::start().await;
    let builder = || Mutex::builder().ttl(TTL).at_least_for(TTL);
    let store = patient!(server.url());
    let early = builder().build(&store, "jobs").unwrap();
    early
        .try_lock("report")
        .await
        .unwrap()
        .run(async |_| ())
        .await
        .unwrap();
    store
        .shutdown(TTL)
        .await
        .expect("it waits for the rest of the time");
    let late = builder().build(&patient!(server.url()), "jobs").unwrap();
    assert!(late.try_lock("report").await.unwrap_err().is_refused());
}

#[tokio::test]
async fn bad_spans_are_refused() {
    let store = Store::in_memory();
    let told = |error: Error, parts: &[&str]| {
        let text = error.to_string();
        assert!(
            error.is_invalid() && parts.iter().all(|part| text.contains(part)),
            "{text} names no {parts:?}"
        );
    };
    let longer = Mutex::builder()
        .ttl(TTL)
        .at_least_for(2 * TTL)
        .build(&store, "jobs");
    told(longer.unwrap_err(), &["10s", "5s"]);
    let jobs = Mutex::new(&store, "jobs").unwrap();
    told(
        jobs.once_per_tick("k", Duration::ZERO, async |_| ())
            .await
            .unwrap_err(),
        &["0ns"],
    );
    let jobs = Mutex::builder()
        .at_least_for(TTL)
        .build(&store, "longer")
        .unwrap();
    told(
        jobs.once_per_tick("k", TTL, async |_| ())
            .await
            .unwrap_err(),
        &["at_least_for"],
    );
}

#[tokio::test]
async fn a_closed_quorum_locks_no_more() {
    let mutex = Mutex::builder()
        .build_quorum([(); 3].map(|()| Store::in_memory()), "jobs")
        .unwrap();
    let guard = mutex.try_lock("k").await.unwrap();
    mutex.close();
    assert!(guard.is_held());
    assert!(mutex.try_lock("l").await.unwrap_err().is_interrupted());
    assert!(mutex.lock("l").await.unwrap_err().is_interrupted());
    assert!(guard.unlock().await.unwrap());
}
