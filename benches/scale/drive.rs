//! So many operations, by so many callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};
use tokio::runtime::Runtime;

/// An operation. It gets its number; those of all callers are different.
pub type Operation = Arc<dyn Fn(u64) -> BoxFuture<'static, ()> + Send + Sync>;

/// Runs the operations with these numbers. Returns how long that took.
pub fn drive(
    runtime: &Runtime,
    operation: &Operation,
    callers: u64,
    numbers: std::ops::Range<u64>,
) -> Duration {
    let next = Arc::new(AtomicU64::new(numbers.start));
    let began = Instant::now();
    let callers = (0..callers).map(|_| {
        let (operation, next) = (Arc::clone(operation), Arc::clone(&next));
        runtime.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= numbers.end {
                    break;
                }
                operation(number).await;
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    runtime
        .block_on(join_all(callers))
        .into_iter()
        .for_each(Result::unwrap);
    began.elapsed()
}
