//! Locks. Each caller tells when it had a lock, by the clock that all processes of a machine share.

use std::time::{Duration, Instant};

use futures::future::join_all;
use tower_distributed::{Mutex, Store};

use crate::child::{Child, tell, wait_for_the_others};
use crate::tasks::Task;

/// From a line of times for each caller, in ns.
pub fn per_second(task: Task, children: &mut [Child]) -> f64 {
    let mut times: Vec<(u64, usize)> = Vec::new();
    let callers = children.len() * task.callers();
    for caller in 0..callers {
        let told: Vec<u64> = children[caller / task.callers()].numbers();
        times.extend(told.into_iter().map(|time| (time, caller)));
    }
    times.sort_unstable();
    let count = match task {
        // Who has it again has not got it from another.
        Task::LockOne => times
            .windows(2)
            .filter(|pair| pair[0].1 != pair[1].1)
            .count(),
        _ => times.len(),
    };
    match (times.first(), times.last()) {
        (Some(first), Some(last)) if last.0 > first.0 => {
            count as f64 / ((last.0 - first.0) as f64 / 1e9)
        }
        _ => panic!("the contestant has failed"),
    }
}

/// This crate's part: each caller locks and unlocks, and tells when it had the lock.
pub async fn play(task: Task, url: &str, length: Duration) {
    let mutex = Mutex::builder()
        .ttl(Duration::from_secs(30))
        .build(&Store::redis(url).unwrap(), "bench")
        .unwrap();
    let process = std::process::id();
    let key = |caller| match task {
        Task::LockEach => format!("key-{process}-{caller}"),
        _ => "key".to_owned(),
    };
    join_all((0..task.callers()).map(async |caller| {
        assert!(
            mutex
                .lock(key(caller))
                .await
                .unwrap()
                .unlock()
                .await
                .unwrap()
        );
    }))
    .await;
    wait_for_the_others();
    let began = Instant::now();
    let work = async |caller| {
        let (key, mut times) = (key(caller), Vec::new());
        while began.elapsed() < length {
            let guard = mutex.lock(&*key).await.unwrap();
            times.push(now());
            assert!(guard.unlock().await.unwrap());
        }
        times
    };
    for times in join_all((0..task.callers()).map(work)).await {
        tell(&times);
    }
}

fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
