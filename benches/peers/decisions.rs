//! This crate's part: decisions that are all admitted.

use std::time::{Duration, Instant};

use futures::future::join_all;
use tower_distributed::{Quota, Store, TokenBucket};

use crate::child::{tell, wait_for_the_others};
use crate::tasks::Task;

const KEYS: u64 = 100_000;
const WARM_UP: usize = 16;

/// Tells how many decisions there were, and the ns that they took.
pub async fn play(task: Task, url: &str, length: Duration) {
    let quota = Quota::per_second(100_000_000);
    let bucket = TokenBucket::new(&Store::redis(url).unwrap(), "bench", quota).unwrap();
    // Those of the peer's program, which draws them at random. These are spread as evenly.
    let names: Vec<_> = (0..KEYS).map(|key| format!("key-{key:016}")).collect();
    let key = |caller: usize, call: usize| match task {
        Task::OneKey => 0,
        _ => ((call * task.callers() + caller) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS,
    };
    let decide = async |caller, call| {
        let name = &names[key(caller, call) as usize];
        assert!(bucket.allow(name).await.unwrap().is_admitted());
    };
    let warm_up = async |caller| {
        for call in 0..WARM_UP {
            decide(caller, call).await;
        }
    };
    join_all((0..task.callers()).map(warm_up)).await;
    wait_for_the_others();
    let began = Instant::now();
    let work = async |caller| {
        let mut calls = WARM_UP;
        while began.elapsed() < length {
            decide(caller, calls).await;
            calls += 1;
        }
        calls - WARM_UP
    };
    let decisions: usize = join_all((0..task.callers()).map(work))
        .await
        .into_iter()
        .sum();
    tell(&[decisions as u64, began.elapsed().as_nanos() as u64]);
}
