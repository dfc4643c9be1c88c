//! Whether a store in memory gives back what it took for keys that are idle past their time.
//!
//! What is in use is asked of the C library's allocator, which counts anyway: an allocator that counts for us would be
//! in the way of every other figure of this program.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use malloc_info::info::{SystemType, TotalType};
use malloc_info::malloc_info;
use tower_distributed::{Quota, Store, TokenBucket};

use crate::child::{self, Role, tell};
use crate::common::report::{figure, note};
use crate::common::{Bench, runtime};

const NAME: &str = "in-memory-bytes-after-idle-ratio";
pub const ROLE: &str = "in-memory-bytes";
const KEYS: u32 = 5_000_000;
const TASKS: u32 = 2;
/// After what time a bucket is full again, and is forgotten.
const REFILL: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(60);
/// What a store may keep, whatever was in it.
const BASE: f64 = (16 << 20) as f64;

pub fn run(bench: &Bench) {
    if !bench.settings.wants(NAME) {
        return;
    }
    // Once: what is counted does not depend on the weather.
    let numbers = child::start(1, ROLE, &bench.server.url)[0].numbers::<f64>();
    let [before, most, after] = numbers[..] else { panic!("{numbers:?}") };
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    note(format!(
        "{KEYS} keys in memory: {:.1} MiB in use before, {:.1} MiB after the last, {:.1} MiB when all had been idle for \
         {IDLE:?}",
        mib(before),
        mib(most),
        mib(after)
    ));
    figure(NAME, "bytes after 5 000 000 keys were idle ÷ those before and 16 MiB", after / (before + BASE));
}

/// Does the part of the copy.
pub fn play(_: &Role) -> ExitCode {
    let runtime = runtime().unwrap();
    let store = Store::in_memory();
    let bucket = TokenBucket::new(&store, "bench", Quota::new(1, REFILL)).unwrap();
    child::wait_for_the_others();
    let before = bytes_in_use();
    let tasks: Vec<_> = (0..TASKS).map(|task| runtime.spawn(see_keys(bucket.clone(), task))).collect();
    tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap());
    let (last, most) = (Instant::now(), bytes_in_use());
    thread::sleep((last + REFILL + IDLE).saturating_duration_since(Instant::now()));
    tell(&[before, most, bytes_in_use()]);
    ExitCode::SUCCESS
}

/// This task's share.
async fn see_keys(bucket: TokenBucket, task: u32) {
    for key in (task..KEYS).step_by(TASKS as usize) {
        assert!(bucket.allow(format!("key-{key:016}")).await.unwrap().is_admitted());
    }
}

/// What the allocator has from the system, but for what is free.
fn bytes_in_use() -> usize {
    let info = malloc_info().unwrap();
    let system = info.system.iter().filter(|system| system.r#type == SystemType::Current);
    let total = |kinds: &[TotalType]| -> usize {
        info.total.iter().filter(|total| kinds.contains(&total.r#type)).map(|total| total.size).sum()
    };
    let taken: usize = system.map(|system| system.size).sum::<usize>() + total(&[TotalType::Mmap]);
    taken - total(&[TotalType::Fast, TotalType::Rest])
}
