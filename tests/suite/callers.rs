//! Callers that go away, or that nobody polls.

use futures::poll;
use tower_distributed::{Quota, Store, TokenBucket};

use crate::stores::SOON;
use support::eventually;

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
        let is_whole = async || bucket.peek(&key).await.unwrap().remaining() == 100;
        eventually("the tokens to be given back", SOON, is_whole).await;
    }
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
