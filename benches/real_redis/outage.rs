//! A server that is away for 10 s under 256 callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tower_distributed::{Quota, Store, TokenBucket};

use crate::common::Bench;
use crate::common::report::figure;
use crate::common::settings::seconds;
use crate::common::stats::{median, percentile};
use support::redis_server::RedisServer;

const LATENCY: &str = "outage-p99-ms";
const RECOVERY: &str = "recovery-ms";
const CALLERS: usize = 256;

/// How long after the beginning of the outage calls are timed: the breaker opens before.
const OPENS: Duration = Duration::from_secs(1);

pub fn run(bench: &Bench) {
    if !bench.settings.wants(LATENCY) && !bench.settings.wants(RECOVERY) {
        return;
    }
    let away = seconds("AWAY", 10.0).unwrap();
    let rounds: Vec<_> = (0..bench.settings.rounds.min(3))
        .map(|_| round(bench, away))
        .collect();
    figure(
        LATENCY,
        "p99 of a call while the server is away, ms, 256 callers",
        median(rounds.iter().map(|(p99, _)| *p99)),
    );
    figure(
        RECOVERY,
        "ms from the server's return to the first success",
        median(rounds.iter().map(|(_, recovery)| *recovery)),
    );
}

fn round(bench: &Bench, away: Duration) -> (f64, f64) {
    let server = bench.runtime.block_on(RedisServer::start());
    let store = Store::redis(&server.url()).unwrap();
    let bucket = TokenBucket::new(&store, "bench", Quota::per_second(1_000_000)).unwrap();
    let (stop, timed) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let began = Instant::now();
    // In µs since `began`: the first success after it was cleared.
    let success = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (bucket, stop, timed, success) =
                (bucket.clone(), stop.clone(), timed.clone(), success.clone());
            bench.runtime.spawn(async move {
                let mut latencies = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let since = Instant::now();
                    let served = bucket.allow(caller.to_string()).await.is_ok();
                    if timed.load(Ordering::Relaxed) {
                        latencies
                            .push(u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX));
                    }
                    if served {
                        let now = began.elapsed().as_micros() as u64;
                        let _ =
                            success.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
                    }
                    // As a service with 256 requests under way, not as a loop.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                latencies
            })
        })
        .collect();
    thread::sleep(Duration::from_secs(1));
    server.kill9();
    thread::sleep(OPENS);
    timed.store(true, Ordering::Relaxed);
    thread::sleep(away.saturating_sub(OPENS));
    timed.store(false, Ordering::Relaxed);
    success.store(0, Ordering::Relaxed);
    bench.runtime.block_on(server.restart());
    let back = began.elapsed().as_micros() as u64;
    while success.load(Ordering::Relaxed) == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    let recovery = success.load(Ordering::Relaxed).saturating_sub(back) as f64 / 1000.0;
    stop.store(true, Ordering::Relaxed);
    let mut latencies: Vec<_> = tasks
        .into_iter()
        .flat_map(|task| bench.runtime.block_on(task).unwrap())
        .collect();
    latencies.sort_unstable();
    let p99 = percentile(&latencies, 0.99) / 1000.0;
    eprintln!(
        "away for {away:?}: p99 of {} calls {p99:.3} ms, back after {recovery:.0} ms",
        latencies.len()
    );
    (p99, recovery)
}
