//! Runtimes that stand still or end with calls in flight, beside one that goes on.

use std::time::Duration;

use futures::future::join_all;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tower_distributed::token_bucket::Decision;
use tower_distributed::{Error, Store, TokenBucket};

use crate::scene::{CALL, MACHINE, current_thread, is_served, multi_thread, start_server, wide_bucket};
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::within;

const LIMIT: Duration = Duration::from_secs(60);

/// The limit for a call of a healthy runtime to a healthy server.
const PROMPTLY: Duration = Duration::from_secs(1);

type Calls = Vec<JoinHandle<Result<Decision, Error>>>;

fn through_a_proxy(timeout: Duration) -> (RedisServer, FaultProxy, TokenBucket) {
    let server = start_server();
    let proxy = current_thread().block_on(FaultProxy::start(server.port()));
    let store = Store::builder().timeout(timeout).redis(&proxy.url()).unwrap();
    (server, proxy, wide_bucket(&store))
}

/// Spawns calls on a runtime and drives it until a request is in flight. A current_thread runtime stands still
/// afterwards.
fn put_in_flight(runtime: &Runtime, proxy: &FaultProxy, bucket: &TokenBucket) -> Calls {
    let before = proxy.held_back();
    let calls = (0..6).map(|caller| {
        let bucket = bucket.clone();
        async move { bucket.allow(caller % 3).await }
    });
    let calls = calls.map(|call| runtime.spawn(call)).collect();
    runtime.block_on(async {
        // Nothing is ever in flight if the runtime depends on another one that stands still.
        let sent = async {
            while proxy.held_back() <= before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_millis(500), sent).await;
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    });
    calls
}

async fn promptly(bucket: &TokenBucket) -> Result<Decision, Error> {
    tokio::time::timeout(PROMPTLY, bucket.allow("k"))
        .await
        .expect("a healthy runtime waits for a stalled one")
}

/// Defect 2. A test in `tests/faults/network.rs` accepts an error in this case; here calls must be served.
#[test]
fn three_stalled_runtimes_do_not_block_a_healthy_one() {
    let _turn = MACHINE.blocking_read();
    let (server, proxy, bucket) = through_a_proxy(Duration::from_secs(3));
    within(LIMIT, "the test", move || {
        let (healthy, stalled) = (multi_thread(), [current_thread(), current_thread(), current_thread()]);
        // All are connected.
        assert!(is_served(&healthy.block_on(bucket.allow("warm"))));
        for runtime in &stalled {
            assert!(is_served(&runtime.block_on(bucket.allow("warm"))));
        }
        proxy.stall();
        let calls: Vec<_> = stalled.iter().map(|runtime| put_in_flight(runtime, &proxy, &bucket)).collect();
        proxy.heal();

        healthy.block_on(async {
            for _ in 0..50 {
                let outcome = promptly(&bucket).await;
                assert!(is_served(&outcome), "{outcome:?}");
            }
        });

        // A stalled runtime that runs again gets its replies or errors; its late time-outs affect no other runtime.
        for (runtime, calls) in stalled.iter().zip(calls) {
            let outcomes = runtime.block_on(async { tokio::time::timeout(CALL, join_all(calls)).await });
            for outcome in outcomes.expect("a call hangs") {
                let outcome = outcome.unwrap();
                assert!(is_served(&outcome) || outcome.is_err_and(|error| error.is_unavailable()));
            }
            assert!(is_served(&healthy.block_on(promptly(&bucket))));
        }
        drop(server);
    });
}

/// Runtimes that stop after any number of polls. The server is healthy all the time.
#[test]
fn runtimes_stalled_at_any_point_do_not_block_a_healthy_one() {
    let _turn = MACHINE.blocking_read();
    let (server, proxy, bucket) = through_a_proxy(Duration::from_secs(3));
    within(LIMIT, "the test", move || {
        let healthy = multi_thread();
        let mut stalled = Vec::new();
        for polls in 0..40 {
            let runtime = current_thread();
            for caller in 0..8 {
                let bucket = bucket.clone();
                runtime.spawn(async move { bucket.allow(caller % 2).await });
            }
            runtime.block_on(async {
                for _ in 0..polls {
                    tokio::task::yield_now().await;
                }
            });
            stalled.push(runtime);
            let outcome = healthy.block_on(promptly(&bucket));
            assert!(is_served(&outcome), "after {polls} polls: {outcome:?}");
        }
        drop((server, proxy));
    });
}

/// The first runtime that used the store ends with calls in flight; another one has calls in flight as well.
fn a_runtime_that_ends_fails_no_call_of_another_runtime(end: impl FnOnce(Runtime) + Send + 'static) {
    let _turn = MACHINE.blocking_read();
    let (server, proxy, bucket) = through_a_proxy(Duration::from_secs(3));
    within(LIMIT, "the test", move || {
        let (ending, other) = (multi_thread(), multi_thread());
        assert!(is_served(&ending.block_on(bucket.allow("warm"))));
        assert!(is_served(&other.block_on(bucket.allow("warm"))));
        proxy.stall();
        let gone = put_in_flight(&ending, &proxy, &bucket);
        let kept = put_in_flight(&other, &proxy, &bucket);
        end(ending);
        proxy.heal();
        let outcomes = other.block_on(async { tokio::time::timeout(CALL, join_all(kept)).await });
        for outcome in outcomes.expect("a call hangs") {
            let outcome = outcome.unwrap();
            assert!(is_served(&outcome), "{outcome:?}");
        }
        for _ in 0..20 {
            let outcome = other.block_on(promptly(&bucket));
            assert!(is_served(&outcome), "{outcome:?}");
        }
        drop((gone, server));
    });
}

#[test]
fn a_runtime_shut_down_mid_call_fails_no_call_of_another_runtime() {
    a_runtime_that_ends_fails_no_call_of_another_runtime(Runtime::shutdown_background);
}

#[test]
fn a_runtime_dropped_mid_call_fails_no_call_of_another_runtime() {
    a_runtime_that_ends_fails_no_call_of_another_runtime(drop);
}
