//! Authorize and capture.

use std::time::Duration;

use tokio::time::timeout;
use tower_distributed::token_bucket::OnEnd;
use tower_distributed::{Quota, Store, TokenBucket};

use crate::stores::{Place, SOON};
use support::eventually;

fn hourly(store: &Store, name: &str) -> TokenBucket {
    TokenBucket::new(store, name, Quota::per_hour(1000)).unwrap()
}

/// Waits until the bucket has no holds. Returns what is left.
async fn settled(bucket: &TokenBucket) -> u32 {
    let settles = async {
        loop {
            let state = bucket.peek("k").await.unwrap();
            if state.held() == 0 {
                return state.remaining();
            }
        }
    };
    timeout(SOON, settles).await.expect("it is still held")
}

pub(crate) async fn what_is_held_is_free_after_the_capture(store: &Store, name: &str) {
    let bucket = hourly(store, name);
    let mut hold = bucket.authorize("k", 600).await.unwrap();
    let state = bucket.peek("k").await.unwrap();
    assert_eq!((state.held(), state.remaining()), (600, 400));
    let refused = bucket.allow_n("k", 500).await.unwrap();
    assert!(!refused.is_admitted() && refused.retry_after().is_some());
    assert!(bucket.authorize("k", 401).await.unwrap_err().decision().is_some());
    hold.extend(400).await.unwrap();
    assert!(!bucket.allow("k").await.unwrap().is_admitted());
    let captured = hold.capture(250).await.unwrap();
    assert_eq!((captured.charged, captured.excess, captured.ended), (250, 0, false));
    assert_eq!((captured.state.held(), captured.state.remaining()), (0, 750));
    assert!(bucket.authorize("k", 700).await.unwrap().release().await.unwrap());
    let more = bucket.authorize("k", 700).await.unwrap().capture(760).await.unwrap();
    assert_eq!((more.charged, more.excess, more.state.remaining()), (760, 60, 0));
}

pub(crate) async fn a_hold_is_renewed_and_lost(place: &Place, name: &str) {
    let bucket = hourly(place, name).with_hold_ttl(Duration::from_secs(6)).unwrap();
    let hold = bucket.authorize("k", 600).await.unwrap();
    let key = place.part(&format!("{name}:k"), "tat");
    // The state has the end of the hold.
    if let Some(server) = place.server_of(&key) {
        let state = || server.query::<Vec<u8>>(&["GET", &key]).unwrap();
        let first = state();
        eventually("a renewal", SOON, async || state() != first).await;
    }
    assert!(hold.is_held());
    assert_eq!(bucket.peek("k").await.unwrap().held(), 600);
    bucket.reset("k").await.unwrap();
    timeout(SOON, hold.lost()).await.expect("it is still held here");
    assert!(!hold.is_held());
    let captured = hold.capture(700).await.unwrap();
    assert!(captured.ended);
    assert_eq!(captured.state.remaining(), 900, "only what the end did not charge");
    let hold = bucket.authorize("k", 600).await.unwrap();
    bucket.reset("k").await.unwrap();
    assert_eq!(hold.capture_if_held(700).await.unwrap().state.remaining(), 1000);
}

pub(crate) async fn a_dropped_hold_ends_as_it_says(store: &Store, name: &str) {
    let bucket = hourly(store, name);
    let hold = bucket.authorize("k", 600).await.unwrap();
    hold.usage().add(20);
    hold.usage().add(30);
    drop(hold);
    assert_eq!(settled(&bucket).await, 950);
    drop(bucket.authorize("k", 600).await.unwrap());
    assert_eq!(settled(&bucket).await, 350);
    drop(bucket.with_on_end(OnEnd::Release).authorize("k", 100).await.unwrap());
    assert_eq!(settled(&bucket).await, 350);
    let credits = TokenBucket::new(store, &format!("{name}-credits"), Quota::non_refilling(50)).unwrap();
    drop(credits.authorize("k", 40).await.unwrap());
    assert_eq!(settled(&credits).await, 50);
}
