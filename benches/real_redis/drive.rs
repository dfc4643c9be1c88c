//! So many callers that ask for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::Barrier;

/// Each caller asks this often before the clock starts.
const WARM_UP: u64 = 16;

/// Requests per second. `ask` gets the number of the request; those of all callers are different.
pub fn per_second<Fut: Future<Output = ()> + Send>(
    runtime: &Runtime,
    callers: u64,
    length: Duration,
    ask: impl FnMut(u64) -> Fut + Clone + Send + 'static,
) -> f64 {
    let stop = Arc::new(AtomicBool::new(false));
    let start = Arc::new(Barrier::new(callers as usize + 1));
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (mut ask, stop, start) = (ask.clone(), stop.clone(), start.clone());
            runtime.spawn(async move {
                let mut requests = (0..).map(|request: u64| request * callers + caller);
                for _ in 0..WARM_UP {
                    ask(requests.next().unwrap()).await;
                }
                start.wait().await;
                let mut count = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    ask(requests.next().unwrap()).await;
                    count += 1;
                }
                count
            })
        })
        .collect();
    runtime.block_on(start.wait());
    let began = Instant::now();
    thread::sleep(length);
    stop.store(true, Ordering::Relaxed);
    let count: u64 = tasks
        .into_iter()
        .map(|task| runtime.block_on(task).unwrap())
        .sum();
    count as f64 / began.elapsed().as_secs_f64()
}
