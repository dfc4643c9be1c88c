//! Whether a store in memory gives back what it took for keys that are idle past their time, and what the local share of a
//! store on Redis takes at most.
//!
//! What is in use is asked of the C library's allocator, which counts anyway: an allocator that counts for us would be
//! in the way of every other figure of this program.

use std::num::NonZeroU32;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use malloc_info::info::{SystemType, TotalType};
use malloc_info::malloc_info;
use tokio::runtime::Runtime;
use tower::util::BoxCloneService;
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};
use tower_distributed::{Quota, RateLimitLayer, Store, StoreFailure, TokenBucket};

use crate::child::{self, Role, tell};
use crate::common::report::{figure, note};
use crate::common::{Bench, runtime};

const NAME: &str = "in-memory-bytes-after-idle-ratio";
pub const ROLE: &str = "in-memory-bytes";
const LOCAL_SHARE: &str = "local-share-mib";
pub const SHARE_ROLE: &str = "local-share-bytes";
const KEYS: u32 = 5_000_000;
/// The made-up keys for the local share.
const MADE_UP: u32 = 2_000_000;
const TASKS: u32 = 2;
/// After what time a bucket is full again, and is forgotten.
const REFILL: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(60);
/// What a store may keep, whatever was in it.
const BASE: f64 = (16 << 20) as f64;

pub fn run(bench: &Bench) {
    local_share(bench);
    if !bench.settings.wants(NAME) {
        return;
    }
    // Once: what is counted does not depend on the weather.
    let numbers = child::start(1, ROLE, &bench.server.url)[0].numbers::<f64>();
    let [before, most, after] = numbers[..] else {
        panic!("{numbers:?}")
    };
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    note(format!(
        "{KEYS} keys in memory: {:.1} MiB in use before, {:.1} MiB after the last, {:.1} MiB when all had been idle for \
         {IDLE:?}",
        mib(before),
        mib(most),
        mib(after)
    ));
    figure(
        NAME,
        "bytes after 5 000 000 keys were idle ÷ those before and 16 MiB",
        after / (before + BASE),
    );
}

fn local_share(bench: &Bench) {
    if !bench.settings.wants(LOCAL_SHARE) {
        return;
    }
    let numbers = child::start(1, SHARE_ROLE, &bench.server.url)[0].numbers::<f64>();
    let [before, after, admitted] = numbers[..] else {
        panic!("{numbers:?}")
    };
    note(format!(
        "{MADE_UP} made-up keys while Redis is away: {admitted} were admitted by the local share."
    ));
    let mib = (after - before) / f64::from(1 << 20);
    figure(
        LOCAL_SHARE,
        "MiB that 2 000 000 made-up keys take in an outage with LocalShare",
        mib,
    );
}

/// Does the part of a copy.
pub fn play(role: &Role) -> ExitCode {
    let runtime = runtime().unwrap();
    if role.name == SHARE_ROLE {
        return play_share(&runtime);
    }
    let store = Store::builder()
        .max_keys(2 * KEYS as usize)
        .max_bytes(8 << 30)
        .in_memory()
        .unwrap();
    let bucket = TokenBucket::new(&store, "bench", Quota::new(1, REFILL)).unwrap();
    child::wait_for_the_others();
    let before = bytes_in_use();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| runtime.spawn(see_keys(bucket.clone(), task)))
        .collect();
    tasks
        .into_iter()
        .for_each(|task| runtime.block_on(task).unwrap());
    let (last, most) = (Instant::now(), bytes_in_use());
    thread::sleep((last + REFILL + IDLE).saturating_duration_since(Instant::now()));
    tell(&[before, most, bytes_in_use()]);
    ExitCode::SUCCESS
}

/// Redis is away: nobody listens on this port.
fn play_share(runtime: &Runtime) -> ExitCode {
    let store = Store::redis("redis://127.0.0.1:1").unwrap();
    let bucket = TokenBucket::new(&store, "bench", Quota::per_hour(1)).unwrap();
    let limit = RateLimitLayer::new(bucket, |key: &String| key.clone());
    let limit = limit.on_store_failure(StoreFailure::LocalShare {
        replicas: NonZeroU32::MIN,
    });
    let service = limit.layer(service_fn(async |_: String| Ok::<_, BoxError>(())));
    let service = BoxCloneService::new(service);
    child::wait_for_the_others();
    let before = bytes_in_use();
    let admitted: u32 = runtime.block_on(async {
        let mut admitted = 0;
        for key in 0..MADE_UP {
            admitted += u32::from(
                service
                    .clone()
                    .oneshot(format!("key-{key:016}"))
                    .await
                    .is_ok(),
            );
        }
        admitted
    });
    tell(&[before, bytes_in_use(), admitted as usize]);
    ExitCode::SUCCESS
}

/// This task's share.
async fn see_keys(bucket: TokenBucket, task: u32) {
    for key in (task..KEYS).step_by(TASKS as usize) {
        assert!(
            bucket
                .allow(format!("key-{key:016}"))
                .await
                .unwrap()
                .is_admitted()
        );
    }
}

/// What the allocator has from the system, but for what is free.
fn bytes_in_use() -> usize {
    let info = malloc_info().unwrap();
    let system = info
        .system
        .iter()
        .filter(|system| system.r#type == SystemType::Current);
    let total = |kinds: &[TotalType]| -> usize {
        info.total
            .iter()
            .filter(|total| kinds.contains(&total.r#type))
            .map(|total| total.size)
            .sum()
    };
    let taken: usize = system.map(|system| system.size).sum::<usize>() + total(&[TotalType::Mmap]);
    taken - total(&[TotalType::Fast, TotalType::Rest])
}
