//! What changes while callers wait: a full queue, a setting of half of the fleet, a limit, and waiters of a process that died.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tower_distributed::fleet::FleetLimit;
use tower_distributed::wait_group::{Turn, WaitGroupBuilder};
use tower_distributed::{Store, WaitGroup};

use crate::common::Bench;
use crate::common::report::figure;
use crate::common::stats::median;

const KEY: &str = "gpu";
const HOLD: Duration = Duration::from_millis(50);

/// The names of settings, and those of the half of the fleet that has turned it on.
type Setting = (
    &'static str,
    fn() -> WaitGroupBuilder,
    fn(usize) -> Turn,
    u32,
);

const SETTINGS: [Setting; 6] = [
    (
        "classes",
        || plain().priorities(2).aging(Duration::from_secs(1)),
        no_turn,
        1,
    ),
    (
        "fair",
        || plain().fair(),
        |nth| Turn::of((nth % 8).to_string()),
        1,
    ),
    (
        "aging",
        || plain().priorities(2).aging(Duration::from_millis(10)),
        no_turn,
        1,
    ),
    (
        "reserve",
        || plain().priorities(2).reserve(0, 2),
        no_turn,
        1,
    ),
    (
        "newest",
        || plain().newest_first_after(Duration::from_millis(10)),
        no_turn,
        1,
    ),
    ("weights", plain, no_turn, 2),
];

fn plain() -> WaitGroupBuilder {
    WaitGroup::builder(8).max_wait(Duration::from_secs(2))
}

fn no_turn(_: usize) -> Turn {
    Turn::new()
}

pub fn run(bench: &Bench) {
    let rounds = |measure: &dyn Fn() -> f64| {
        median(
            (0..bench.settings.rounds)
                .map(|_| measure())
                .collect::<Vec<_>>(),
        )
    };
    let name = "fair-full-modest-refused";
    if bench.settings.wants(name) {
        let measures = "refusals of a tenant with one call, beside one with 60 callers and a queue of at most 20";
        figure(name, measures, rounds(&|| modest_refused(bench)));
    }
    for (setting, builder, turn, weight) in SETTINGS {
        for (way, is_on) in [("on", true), ("off", false)] {
            let name = format!("mixed-fleet-share-{setting}-{way}");
            if bench.settings.wants(&name) {
                let measures = "served by the half of a fleet that is worse off, of its half";
                figure(
                    &name,
                    measures,
                    rounds(&|| mixed(bench, builder, turn, weight, is_on)),
                );
            }
        }
    }
    for (way, from, to) in [("down", 20, 2), ("up", 2, 20)] {
        let name = format!("limit-change-ms-{way}");
        if bench.settings.wants(&name) {
            let measures =
                "from the change of a limit until as many run, with 500 waiting, each for 50 ms";
            figure(&name, measures, rounds(&|| limit_change(bench, from, to)));
        }
    }
    for dead in [1, 5, 100] {
        let name = format!("dead-waiters-stall-ms-{dead}");
        if bench.settings.wants(&name) {
            let measures =
                "from a release until a caller behind waiters of a dead process is served";
            figure(&name, measures, rounds(&|| stall(bench, dead)));
        }
    }
}

fn store(bench: &Bench) -> Store {
    let _inside = bench.runtime.enter();
    Store::builder().redis(&bench.server.url).unwrap()
}

fn fresh(bench: &Bench) {
    bench.server.query::<()>(&["FLUSHALL"]);
}

fn modest_refused(bench: &Bench) -> f64 {
    fresh(bench);
    let group = WaitGroup::builder(2)
        .fair()
        .max_waiters(20)
        .build(&store(bench), "full")
        .unwrap();
    let end = Instant::now() + bench.settings.length;
    bench.runtime.block_on(async {
        let call = |tenant: &'static str| {
            let group = group.with_turn(Turn::of(tenant)).unwrap();
            tokio::spawn(async move {
                let mut refused = 0_u32;
                while Instant::now() < end {
                    match group.add(KEY).await {
                        Ok(permit) => {
                            tokio::time::sleep(Duration::from_millis(5)).await;
                            permit.done().await.unwrap();
                        }
                        Err(error) => {
                            assert!(error.is_queue_full(), "{error}");
                            refused += 1;
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    }
                }
                refused
            })
        };
        let greedy: Vec<_> = (0..60).map(|_| call("greedy")).collect();
        let refused = call("modest").await.unwrap();
        for caller in greedy {
            caller.await.unwrap();
        }
        refused.into()
    })
}

/// Callers come to both halves at the same rate, for twice as much as can be served.
fn mixed(
    bench: &Bench,
    setting: fn() -> WaitGroupBuilder,
    turn: fn(usize) -> Turn,
    weight: u32,
    is_on: bool,
) -> f64 {
    fresh(bench);
    let stores = [store(bench), store(bench)];
    // The later one is that of the deployment.
    let builders: [fn() -> WaitGroupBuilder; 2] = if is_on {
        [plain, setting]
    } else {
        [setting, plain]
    };
    let groups: Vec<_> = stores
        .iter()
        .zip(builders)
        .map(|(store, builder)| builder().build(store, "mixed").unwrap())
        .collect();
    let served: [Arc<AtomicU32>; 2] = Default::default();
    let end = Instant::now() + bench.settings.length.max(Duration::from_secs(4));
    bench.runtime.block_on(async {
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        let mut nth = 0;
        while Instant::now() < end {
            pace.tick().await;
            for _ in 0..8 {
                let half = nth % 2;
                let has_it = (half == 1) == is_on;
                let group = groups[half]
                    .with_turn(if has_it { turn(nth) } else { Turn::new() })
                    .unwrap();
                let (served, weight) = (Arc::clone(&served[half]), if has_it { weight } else { 1 });
                tokio::spawn(async move {
                    if let Ok(permit) = group.add_n(KEY, weight).await {
                        served.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(HOLD).await;
                        permit.done().await.unwrap();
                    }
                });
                nth += 1;
            }
            // The other half is first the next time.
            nth += 1;
        }
    });
    let counts = served.map(|served| f64::from(served.load(Ordering::Relaxed)));
    bench
        .runtime
        .block_on(async { tokio::time::sleep(Duration::from_millis(2500)).await });
    counts[0].min(counts[1]) / ((counts[0] + counts[1]) / 2.0)
}

fn limit_change(bench: &Bench, from: u32, to: u32) -> f64 {
    fresh(bench);
    let store = store(bench);
    bench.runtime.block_on(async {
        let limit = FleetLimit::new(&store, "limit", from).unwrap();
        let group = WaitGroup::new(&store, "limit", from).unwrap();
        let running = Arc::new(AtomicU32::new(0));
        let callers: Vec<_> = (0..500)
            .map(|_| {
                let (group, running) = (group.clone(), Arc::clone(&running));
                tokio::spawn(async move {
                    loop {
                        let permit = group.add(KEY).await.unwrap();
                        running.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(HOLD).await;
                        running.fetch_sub(1, Ordering::Relaxed);
                        permit.done().await.unwrap();
                    }
                })
            })
            .collect();
        while group.inspect(KEY).await.unwrap().waiting < 450 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let began = Instant::now();
        limit.set(to, "bench").await.unwrap();
        let is_right = |running: u32| {
            if to < from {
                running <= to
            } else {
                running >= to
            }
        };
        while !is_right(running.load(Ordering::Relaxed)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let took = began.elapsed();
        callers.iter().for_each(|caller| caller.abort());
        tokio::time::sleep(Duration::from_millis(500)).await;
        took.as_secs_f64() * 1000.0
    })
}

/// The waiters of the dead process are as Redis has them: they came, and are never heard of again.
fn stall(bench: &Bench, dead: u32) -> f64 {
    fresh(bench);
    let store = store(bench);
    bench.runtime.block_on(async {
        let group = WaitGroup::new(&store, "dead", 8).unwrap();
        let holder = group.add_n(KEY, 8).await.unwrap();
        let [seconds, micros]: [String; 2] = bench
            .server
            .query::<Vec<String>>(&["TIME"])
            .try_into()
            .unwrap();
        let alive = seconds.parse::<u64>().unwrap() * 1_000_000
            + micros.parse::<u64>().unwrap()
            + 7_000_000;
        let (waiters, beats) = (
            format!("td:{{dead:{KEY}}}:permits:waiters"),
            format!("td:{{dead:{KEY}}}:permits:beats"),
        );
        for id in 0..dead {
            let token = format!("dddddddddddddddd-{id:x}.1c9c380/1/8");
            let score = (7_u64 << 49) + u64::from(id);
            bench
                .server
                .query::<()>(&["ZADD", &waiters, &score.to_string(), &token]);
            bench
                .server
                .query::<()>(&["ZADD", &beats, &alive.to_string(), &token]);
        }
        for key in [&waiters, &beats] {
            bench.server.query::<()>(&["PEXPIRE", key, "60000"]);
        }
        let next = tokio::spawn(async move {
            // As many as the dead processes had at once.
            let permit = group.add_n(KEY, 8).await.unwrap();
            let served = Instant::now();
            permit.done().await.unwrap();
            served
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let began = Instant::now();
        holder.done().await.unwrap();
        (next.await.unwrap() - began).as_secs_f64() * 1000.0
    })
}
