//! The numbers of Lua are exact up to 2^53. Larger products must not be rounded.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use futures::future::join_all;

use super::virtual_time::VirtualTime;
use crate::primitive::token_bucket::TokenBucket;
use crate::store::Clock;
use crate::support::redis_server::RedisServer;
use crate::{Quota, Store};

const NOW: i64 = 1_760_000_000_000_000;

/// A token is back after 9 006 333 333 µs and one part of 1 000 003 of a µs. In parts, that time and the burst are
/// 2^53 + 259 007 together, which is rounded up to a whole token.
async fn a_wait_that_is_one_part_too_short_is_refused(store: &Store) {
    let bucket = TokenBucket::new(store, "exact", Quota::per_second(1_000_003).burst(838_903)).unwrap();
    let reserve = async |key: u32, wait| {
        bucket.with_max_wait(Duration::from_micros(wait)).reserve(key).await.map(|reserved| reserved.delay())
    };
    // Several keys share a call; the first has its own.
    join_all((0..4).map(async |key| {
        for tokens in [3_000_000_000, 3_000_000_000, 3_000_000_000, 7_199_254] {
            bucket.charge(key, tokens).await.unwrap();
        }
        assert!(reserve(key, 9_006_333_333).await.unwrap_err().is_refused());
        assert_eq!(reserve(key, 9_006_333_334).await.unwrap(), Duration::from_micros(9_006_333_334));
    }))
    .await;
}

#[tokio::test]
async fn large_products_are_exact_in_memory() {
    let clock = Clock::Manual(Arc::new(AtomicI64::new(NOW)));
    a_wait_that_is_one_part_too_short_is_refused(&Store::with_clock(clock)).await;
}

#[tokio::test]
async fn large_products_are_exact_on_redis() {
    let server = RedisServer::start().await;
    VirtualTime::new(&server).set(NOW);
    a_wait_that_is_one_part_too_short_is_refused(&VirtualTime::store(&server)).await;
}
