//! Many who wait for what is not released: what they cost the server meanwhile, and what else calls it when nothing happens.

use std::any::Any;
use std::thread;
use std::time::{Duration, Instant};

use tower_distributed::fleet::FleetLimit;
use tower_distributed::fleet::FleetTable;
use tower_distributed::{BreakerState, FleetQuotas, Mutex, Quota, Store, TokenBucket, WaitGroup};

use crate::common::Bench;
use crate::common::report::{figure, note};
use crate::common::server::{Server, calls};
use crate::common::settings::seconds;

const NAME: &str = "idle-waiter-commands-per-second";
const WAITERS: usize = 1000;
const KEY: &str = "key-0000000000000001";

/// What is kept while a state lasts.
type Kept = Box<dyn Any>;

/// The figure, what it measures, and how the state begins.
type State = (&'static str, &'static str, fn(&Bench, &Server) -> Kept);

const STATES: [State; 6] = [
    (
        "idle-commands-per-second-lone-waiter",
        "commands/s, a waiter for a permit of another process",
        |bench, server| waiters(bench, server, 1),
    ),
    (
        "idle-commands-per-second-waiters-100",
        "commands/s, 100 waiters for a permit",
        |bench, server| waiters(bench, server, 100),
    ),
    (
        "idle-commands-per-second-held-lease",
        "commands/s, a held lock",
        |bench, server| held(bench, server, 1),
    ),
    (
        "idle-commands-per-second-held-1000",
        "commands/s, 1000 held locks",
        |bench, server| held(bench, server, 1000),
    ),
    (
        "idle-commands-per-second-follow",
        "commands/s, three followed settings",
        follow,
    ),
    (
        "idle-commands-per-second-breaker-open",
        "commands/s, a waiter and a lock while all calls fail",
        breaker_open,
    ),
];

pub fn run(bench: &Bench) -> Result<(), String> {
    states(bench)?;
    many(bench)
}

/// All states at the same time, each at a server of its own.
fn states(bench: &Bench) -> Result<(), String> {
    let idle = seconds("IDLE", 30.0)?;
    let mut all = Vec::new();
    for (name, measures, begin) in STATES
        .into_iter()
        .filter(|(name, ..)| bench.settings.wants(name))
    {
        let server = Server::start()?;
        let kept = begin(bench, &server);
        let mut connection = server.connection();
        let before = calls(&mut connection, is_of_a_client);
        all.push((name, measures, server, kept, connection, before));
    }
    let began = Instant::now();
    if !all.is_empty() {
        thread::sleep(idle);
    }
    let span = began.elapsed().as_secs_f64();
    for (name, measures, _server, _kept, mut connection, before) in all {
        let calls = calls(&mut connection, is_of_a_client) - before;
        figure(name, measures, calls as f64 / span);
    }
    Ok(())
}

/// Commands that no script runs, beside those of the bench.
fn is_of_a_client(command: &str) -> bool {
    [
        "eval",
        "evalsha",
        "fcall",
        "ping",
        "subscribe",
        "auth",
        "hello",
    ]
    .contains(&command)
}

fn process(server: &Server) -> Store {
    Store::redis(&server.url).unwrap()
}

/// They come one after the other.
fn waiters(bench: &Bench, server: &Server, count: u64) -> Kept {
    let groups =
        [process(server), process(server)].map(|store| WaitGroup::new(&store, "bench", 1).unwrap());
    let [group, other] = groups;
    let permit = bench.runtime.block_on(group.add(KEY)).unwrap();
    let waiters: Vec<_> = (0..count)
        .map(|_| {
            let other = other.clone();
            thread::sleep(Duration::from_millis(10));
            bench.runtime.spawn(async move { other.add(KEY).await })
        })
        .collect();
    until("all of them wait", || {
        server.query::<u64>(&["ZCARD", &format!("td:{{bench:{KEY}}}:permits:waiters")]) == count
    });
    Box::new((permit, waiters))
}

fn held(bench: &Bench, server: &Server, count: u64) -> Kept {
    let mutex = Mutex::new(&process(server), "bench").unwrap();
    let lock = |key: u64| bench.runtime.block_on(mutex.lock(key)).unwrap();
    Box::new((0..count).map(lock).collect::<Vec<_>>())
}

fn follow(bench: &Bench, server: &Server) -> Kept {
    let store = process(server);
    let quotas = FleetQuotas::new(&store, "bench", "1/s").unwrap();
    bench.runtime.block_on(quotas.refresh()).unwrap();
    let limit = FleetLimit::new(&store, "bench", 1_u32).unwrap();
    Box::new((quotas, limit, FleetTable::new(&store, "bench", "").unwrap()))
}

/// Scripts fail, since their writes would have no replica.
fn breaker_open(bench: &Bench, server: &Server) -> Kept {
    let waiters = waiters(bench, server, 1);
    let store = process(server);
    let guard = bench
        .runtime
        .block_on(Mutex::new(&store, "bench").unwrap().lock(KEY))
        .unwrap();
    server.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let bucket = TokenBucket::new(&store, "bench", Quota::per_second(1)).unwrap();
    until("the breaker is open", || {
        let failed = bench.runtime.block_on(bucket.allow(KEY)).is_err();
        failed && bench.runtime.block_on(async { store.stats().breaker }) != BreakerState::Closed
    });
    Box::new((waiters, guard))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < patience, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn many(bench: &Bench) -> Result<(), String> {
    if !bench.settings.wants(NAME) {
        return Ok(());
    }
    let idle = seconds("IDLE", 10.0)?;
    bench.server.empty();
    let store = Store::redis(&bench.server.url).unwrap();
    // Each has a place of its own in the queue: of the others, a process has one for all its waiters.
    let mutex = Mutex::builder()
        .strict_fifo()
        .build(&store, "bench")
        .unwrap();
    let guard = bench.runtime.block_on(mutex.lock(KEY)).unwrap();
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| bench.runtime.spawn(lock_and_unlock(mutex.clone())))
        .collect();
    wait_until_all_wait(bench, &store);

    let mut connection = bench.server.connection();
    let (began, calls_before) = (Instant::now(), calls(&mut connection, |_| true));
    thread::sleep(idle);
    // The first asking is among those counted by the second.
    let calls = calls(&mut connection, |_| true) - calls_before - 1;
    let per_second = calls as f64 / began.elapsed().as_secs_f64();

    let released = Instant::now();
    assert!(bench.runtime.block_on(guard.unlock()).unwrap());
    waiters
        .into_iter()
        .for_each(|waiter| bench.runtime.block_on(waiter).unwrap());
    note(format!(
        "{WAITERS} waiters watched for {idle:?}: {calls} commands; then all were served within {:.0} ms.",
        released.elapsed().as_secs_f64() * 1000.0
    ));
    figure(NAME, "commands/s of 1000 waiters for one lock", per_second);
    Ok(())
}

async fn lock_and_unlock(mutex: Mutex) {
    assert!(mutex.lock(KEY).await.unwrap().unlock().await.unwrap());
}

/// A queue that takes no more than all of them has no place for one more.
fn wait_until_all_wait(bench: &Bench, store: &Store) {
    let probe = Mutex::builder()
        .strict_fifo()
        .max_waiters(WAITERS as u32)
        .max_wait(Duration::from_millis(10));
    let probe = probe.build(store, "bench").unwrap();
    let patience = Instant::now() + Duration::from_secs(10);
    while bench
        .runtime
        .block_on(probe.lock(KEY))
        .unwrap_err()
        .is_waited_too_long()
    {
        assert!(
            Instant::now() < patience,
            "not all {WAITERS} waiters are in the queue"
        );
    }
}
