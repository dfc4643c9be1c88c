//! What a store costs a process that makes no calls, by copies of this process.

use std::process::ExitCode;
use std::thread;

use tower_distributed::{Mutex, Quota, Store, TokenBucket};

use crate::child::{self, Role, tell};
use crate::common::report::{figure, note};
use crate::common::settings::seconds;
use crate::common::{Bench, runtime};
use crate::cpu::nanos_by_thread;

const NAME: &str = "idle-cpu-ms-per-minute";
pub const ON_REDIS: &str = "idle-on-redis";
pub const IN_MEMORY: &str = "idle-in-memory";
const KEYS: usize = 10_000;
const LOCKS: usize = 100;

pub fn run(bench: &Bench) {
    if !bench.settings.wants(NAME) {
        return;
    }
    bench.server.empty();
    // Both at the same time: an idle process does not disturb another.
    let mut children =
        [ON_REDIS, IN_MEMORY].map(|role| (role, child::start(1, role, &bench.server.url)));
    let worst = children.iter_mut().map(|(role, children)| {
        let per_minute = children[0].numbers::<f64>()[0];
        note(format!(
            "{role}, {KEYS} keys seen: {per_minute:.1} ms per minute."
        ));
        per_minute
    });
    let worst = worst.fold(0.0, f64::max);
    figure(
        NAME,
        "ms of CPU per minute of a process that makes no calls",
        worst,
    );
}

/// Does the part of a copy: sees many keys, and then counts the time on a CPU of all its threads.
pub fn play(role: &Role) -> ExitCode {
    let store = match &*role.name {
        ON_REDIS => Store::redis(&role.url).unwrap(),
        _ => Store::in_memory(),
    };
    let idle = seconds("IDLE", 30.0).unwrap();
    let runtime = runtime().unwrap();
    runtime.block_on(see_keys(&store));
    child::wait_for_the_others();

    let before = nanos_by_thread("self");
    thread::sleep(idle);
    let after = nanos_by_thread("self");
    let spent: u64 = after
        .iter()
        .map(|(thread, nanos)| nanos - before.get(thread).unwrap_or(&0))
        .sum();
    drop(store);
    tell(&[spent as f64 / 1e6 * 60.0 / idle.as_secs_f64()]);
    ExitCode::SUCCESS
}

/// Buckets that are not full for hours, so that their state stays, and locks that are free again.
async fn see_keys(store: &Store) {
    let bucket = TokenBucket::new(store, "bench", Quota::per_hour(10)).unwrap();
    for key in 0..KEYS {
        assert!(
            bucket
                .allow(format!("key-{key:016}"))
                .await
                .unwrap()
                .is_admitted()
        );
    }
    let mutex = Mutex::new(store, "bench").unwrap();
    for key in 0..LOCKS {
        assert!(
            mutex
                .lock(format!("key-{key:016}"))
                .await
                .unwrap()
                .unlock()
                .await
                .unwrap()
        );
    }
}
