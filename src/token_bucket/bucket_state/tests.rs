use std::time::Duration;

use crate::token_bucket::{Decision, TokenBucket};
use crate::{Quota, Store};

/// A client that spreads its remaining tokens over the window is never refused.
#[tokio::test]
async fn the_window_says_at_what_pace_tokens_come_back() {
    let bucket = |quota| TokenBucket::new(&Store::in_memory(), "test", quota).unwrap();
    let told = |decision: &Decision| {
        let balance = decision.state.tightest();
        (balance.remaining, balance.effective_window.map(|window| window.as_secs_f64().round()))
    };
    let hourly = bucket(Quota::per_hour(1000));
    assert_eq!(told(&hourly.allow("k").await.unwrap()), (999, Some(3596.0)));
    assert_eq!(told(&hourly.allow_n("k", 999).await.unwrap()), (0, Some(4.0)), "until the next");
    let once = bucket(Quota::non_refilling(2));
    assert_eq!(told(&once.allow("k").await.unwrap()), (1, None));
    let blocked = bucket(Quota::per_second(1).burst(5));
    blocked.block_for("k", Duration::from_secs(60)).await.unwrap();
    assert_eq!(told(&blocked.allow("k").await.unwrap()), (0, Some(60.0)));
}
