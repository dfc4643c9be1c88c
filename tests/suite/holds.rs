//! Authorize and capture.

use std::time::Duration;

use tokio::time::timeout;
use tower_distributed::{Quota, TokenBucket};

use crate::stores::{Place, SOON};
use support::eventually;

pub(crate) async fn a_hold_is_renewed_and_lost(place: &Place, name: &str) {
    let bucket = TokenBucket::new(place, name, Quota::per_hour(1000)).unwrap();
    let bucket = bucket.with_hold_ttl(Duration::from_secs(6)).unwrap();
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
    timeout(SOON, hold.lost())
        .await
        .expect("it is still held here");
    assert!(!hold.is_held());
    let captured = hold.capture(700).await.unwrap();
    assert!(captured.ended);
    assert_eq!(
        captured.state.remaining(),
        900,
        "only what the end did not charge"
    );
    let hold = bucket.authorize("k", 600).await.unwrap();
    bucket.reset("k").await.unwrap();
    assert_eq!(
        hold.capture_if_held(700).await.unwrap().state.remaining(),
        1000
    );
}
