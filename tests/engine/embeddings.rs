//! A store recovers from an outage, whatever runtimes its callers have.

use tower_distributed::{Store, TokenBucket};

use crate::scene::{
    CALL, MACHINE, Outage, RECOVERY, current_thread, is_served, multi_thread, recovers, restart,
    start_server, timed, wide_bucket,
};
use support::redis_server::RedisServer;
use support::{eventually, eventually_blocking, within};

const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

fn scene() -> (RedisServer, TokenBucket) {
    let server = start_server();
    let bucket = wide_bucket(&Store::redis(&server.url()).unwrap());
    (server, bucket)
}

fn a_multi_thread_runtime_recovers(outage: Outage) {
    let _turn = MACHINE.blocking_read();
    let ((server, bucket), runtime) = (scene(), multi_thread());
    within(LIMIT, "the test", move || {
        recovers(&server, outage, || runtime.block_on(bucket.allow("k")));
    });
}

#[test]
fn a_multi_thread_runtime_recovers_from_a_crash() {
    a_multi_thread_runtime_recovers(Outage::Killed);
}

/// Defect 1.
fn block_on_per_call_recovers(outage: Outage) {
    let _turn = MACHINE.blocking_read();
    let ((server, bucket), runtime) = (scene(), current_thread());
    within(LIMIT, "the test", move || {
        recovers(&server, outage, || runtime.block_on(bucket.allow("k")));
    });
}

#[test]
fn block_on_per_call_recovers_from_a_crash() {
    block_on_per_call_recovers(Outage::Killed);
}

#[test]
fn block_on_per_call_recovers_from_a_stall() {
    block_on_per_call_recovers(Outage::Stopped);
}

/// Defect 1: the breaker was shared, and its probe ran on the runtime that opened it.
#[test]
fn an_idle_runtime_that_opened_the_breaker_does_not_block_others() {
    timed(LIMIT, scene, |(server, bucket)| {
        let (idle, busy) = (current_thread(), multi_thread());
        assert!(is_served(&busy.block_on(bucket.allow("k"))));
        assert!(is_served(&idle.block_on(bucket.allow("k"))));
        server.kill9();
        for _ in 0..10 {
            assert!(idle.block_on(bucket.allow("k")).unwrap_err().is_unavailable());
        }
        restart(&server);
        busy.block_on(eventually("an answer on the other runtime", RECOVERY, async || {
            is_served(&bucket.allow("k").await)
        }));
        // The idle runtime recovers as well.
        eventually_blocking("an answer on the idle runtime", RECOVERY, || {
            is_served(&idle.block_on(bucket.allow("k")))
        });
    });
}

/// Calls take turns between a runtime that runs all the time and one that runs only within calls.
#[test]
fn both_kinds_of_runtimes_recover_together() {
    timed(LIMIT, scene, |(server, bucket)| {
        let (idle, busy) = (current_thread(), multi_thread());
        let mut turn = 0;
        recovers(&server, Outage::Killed, || {
            turn += 1;
            if turn % 2 == 0 { idle.block_on(bucket.allow("k")) } else { busy.block_on(bucket.allow("k")) }
        });
    });
}

#[test]
fn a_new_runtime_for_each_call_recovers() {
    timed(LIMIT, scene, |(server, bucket)| {
        recovers(&server, Outage::Killed, || current_thread().block_on(bucket.allow("k")));
    });
}

#[test]
fn both_of_two_stores_on_one_url_recover() {
    let _turn = MACHINE.blocking_read();
    let (server, first) = scene();
    let second = wide_bucket(&Store::redis(&server.url()).unwrap());
    let (idle, busy) = (current_thread(), multi_thread());
    within(LIMIT, "the test", move || {
        recovers(&server, Outage::Killed, || {
            let outcome = idle.block_on(first.allow("k"));
            busy.block_on(second.allow("k")).and(outcome)
        });
    });
}

/// One store is dropped while another one on the same URL has calls under way.
#[test]
fn a_store_outlives_another_one_on_its_url() {
    let _turn = MACHINE.blocking_read();
    let (server, kept) = scene();
    let runtime = multi_thread();
    within(LIMIT, "the test", move || {
        runtime.block_on(async {
            for round in 0..10 {
                let dropped = wide_bucket(&Store::redis(&server.url()).unwrap());
                let calls = (0..20).map(|_| kept.allow(round));
                let others = futures::future::join_all((0..20).map(|_| dropped.allow(round)));
                let (calls, others) = tokio::join!(futures::future::join_all(calls), others);
                assert!(calls.iter().chain(&others).all(is_served));
                drop(dropped);
                let outcome = tokio::time::timeout(CALL, kept.allow(round)).await;
                assert!(is_served(&outcome.expect("the call hangs")));
            }
        });
    });
}
