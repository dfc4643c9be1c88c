//! Many callers at a time.

use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tower_distributed::{Quota, Store, TokenBucket};

use crate::stores;
use support::eventually;

pub(crate) async fn a_crowd_gets_each_burst(store: &Store, name: &str) {
    let bucket = TokenBucket::new(store, name, Quota::per_hour(1).burst(500)).unwrap();
    let caller = |number: u32| {
        let bucket = bucket.clone();
        tokio::spawn(async move {
            let mut taken = [0; 3];
            for call in 0..24 {
                let (key, cost) = (call % 3, [1, 1 + (number + call) % 40][usize::from(call % 3 == 2)]);
                let decision = bucket.allow_n(u64::from(key), cost).await.unwrap();
                taken[key as usize] += if decision.is_admitted() { cost } else { 0 };
            }
            taken
        })
    };
    // Of the last key, more than 8000 are asked for.
    let taken = join_all((0..64).map(caller)).await.into_iter().map(Result::unwrap);
    let taken = taken.fold([0; 3], |sum, of| [0, 1, 2].map(|key| sum[key] + of[key]));
    assert_eq!(taken[..2], [500, 500]);
    let left = bucket.peek(2_u64).await.unwrap().remaining();
    assert_eq!(taken[2] + left, 500);
    assert!(left < 40, "{left} left, though somebody asked for no more than that");
}

pub(crate) async fn a_caller_that_goes_away_gives_back(store: &Store, name: &str) {
    let bucket = TokenBucket::new(store, name, Quota::per_hour(1).burst(100)).unwrap();
    for key in 0..10 {
        let key = key.to_string();
        // Polled once, so under way, and then dropped.
        let mut call = Box::pin(bucket.allow_n(&key, 7));
        if poll!(call.as_mut()).is_ready() {
            // In process it is done at once, and its answer known: nothing to give back.
            bucket.reset(&key).await.unwrap();
        }
        drop(call);
        // What comes after it is answered after it, so it is charged by now, if not given back.
        bucket.allow("another").await.unwrap();
        eventually("the tokens to be given back", Duration::from_secs(10), async || {
            bucket.peek(&key).await.unwrap().remaining() == 100
        })
        .await;
    }
}

/// On one thread nothing is sent before this task waits, so it is known which calls are under way.
#[tokio::test]
async fn a_crowd_that_goes_away_gives_back() {
    let store = stores::redis().await;
    let bucket = TokenBucket::new(&store, "crowd", Quota::per_hour(1).burst(100)).unwrap();
    let mut crowd: Vec<_> = (0..20).map(|_| Box::pin(bucket.allow("k"))).collect();
    for call in &mut crowd {
        assert!(poll!(call.as_mut()).is_pending());
    }
    drop(crowd);
    eventually("the tokens to be given back", Duration::from_secs(10), async || {
        bucket.peek("k").await.unwrap().remaining() == 100
    })
    .await;
}

pub(crate) async fn futures_that_are_not_polled_hold_nobody_up(store: &Store, name: &str) {
    let bucket = TokenBucket::new(store, name, Quota::per_hour(1).burst(100)).unwrap();
    let mut held: Vec<_> = (0..3).map(|_| Box::pin(bucket.allow("k"))).collect();
    for call in &mut held {
        let _ = poll!(call.as_mut());
    }
    for _ in 0..10 {
        assert!(bucket.allow("k").await.unwrap().is_admitted());
    }
    drop(held);
}
