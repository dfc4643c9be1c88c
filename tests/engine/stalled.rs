//! Runtimes that stand still or end with calls in flight, beside one that goes on: it is served, though the others do nothing.

use futures::future::join_all;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tower_distributed::TokenBucket;

use crate::scene::{SOON, blocking, current_thread, is_served, multi_thread, open, wide_bucket};
use support::eventually;
use support::proxy::FaultProxy;

/// Spawns calls on a runtime and drives it until a request is in flight. A runtime of one thread stands still afterwards.
fn put_in_flight(
    runtime: &Runtime,
    proxy: &FaultProxy,
    bucket: &TokenBucket,
) -> Vec<JoinHandle<bool>> {
    let before = proxy.held_back();
    let calls = (0_u64..6).map(|caller| {
        let bucket = bucket.clone();
        runtime.spawn(async move { is_served(&bucket.allow(caller % 3).await) })
    });
    let calls = calls.collect();
    runtime.block_on(async {
        // Nothing is ever in flight if the runtime depends on another one that stands still.
        eventually("a request in flight", SOON, async || {
            proxy.held_back() > before
        })
        .await;
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    });
    calls
}

/// Defect 2.
#[test]
fn runtimes_that_stand_still_or_end_fail_no_call_of_another() {
    blocking(|server| {
        let proxy = current_thread().block_on(FaultProxy::start(server.port()));
        let bucket = wide_bucket(&open(&proxy.url()));
        let (healthy, stalled) = (
            multi_thread(),
            [current_thread(), current_thread(), current_thread()],
        );
        let ending: [(Runtime, fn(Runtime)); 2] = [
            (multi_thread(), Runtime::shutdown_background),
            (multi_thread(), drop),
        ];
        let others = || {
            stalled
                .iter()
                .chain(ending.iter().map(|(runtime, _)| runtime))
        };
        // All are connected; one of those that end was the first to use the store.
        for runtime in ending
            .iter()
            .map(|(runtime, _)| runtime)
            .chain([&healthy])
            .chain(&stalled)
        {
            assert!(is_served(&runtime.block_on(bucket.allow("warm"))));
        }
        proxy.stall();
        let mut calls: Vec<_> = others()
            .map(|runtime| put_in_flight(runtime, &proxy, &bucket))
            .collect();
        let kept = put_in_flight(&healthy, &proxy, &bucket);
        for (runtime, end) in ending {
            end(runtime);
        }
        proxy.heal();
        assert!(
            healthy
                .block_on(join_all(kept))
                .into_iter()
                .all(Result::unwrap)
        );
        let is_healthy = || is_served(&healthy.block_on(bucket.allow("k")));
        assert!((0..50).all(|_| is_healthy()));

        // One that runs again gets its replies, and concerns nobody.
        calls.truncate(stalled.len());
        for (runtime, calls) in stalled.iter().zip(calls) {
            assert!(
                runtime
                    .block_on(join_all(calls))
                    .into_iter()
                    .all(Result::unwrap)
            );
            assert!(is_healthy());
        }
    });
}

/// Runtimes that stop after any number of polls. The server is healthy all the time.
#[test]
fn runtimes_stalled_at_any_point_do_not_block_a_healthy_one() {
    blocking(|server| {
        let bucket = wide_bucket(&open(&server.url()));
        let (healthy, mut stalled) = (multi_thread(), Vec::new());
        for polls in 0..40 {
            let runtime = current_thread();
            for caller in 0_u64..8 {
                let bucket = bucket.clone();
                runtime.spawn(async move { bucket.allow(caller % 2).await });
            }
            runtime.block_on(async {
                for _ in 0..polls {
                    tokio::task::yield_now().await;
                }
            });
            stalled.push(runtime);
            let outcome = healthy.block_on(bucket.allow("k"));
            assert!(is_served(&outcome), "after {polls} polls: {outcome:?}");
        }
    });
}
