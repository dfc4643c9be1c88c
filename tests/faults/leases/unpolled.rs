//! A future that is not polled any more does not keep what it was granted from others.

use futures::future::join_all;
use futures::poll;

use crate::leases::kinds::{Family, LONG, SOON, hasty, open, two_of_each};
use support::eventually;
use support::redis_server::RedisServer;

/// It asked for what was free.
#[tokio::test]
async fn the_answer_to_who_asks_is_not_taken_up() {
    let server = RedisServer::start().await;
    let near = Family::each(&open(&server.url()), LONG);
    // What is not taken up is given back after the time-out of a call.
    let far = Family::each(&hasty(&server.url(), 1500), LONG);
    join_all(near.iter().zip(&far).map(async |(near, far)| {
        // Its connection is there, so that the first poll sends.
        assert!(far.take("k").await.unwrap().release().await.unwrap());
        let mut forgotten = Box::pin(far.take("k"));
        assert!(poll!(forgotten.as_mut()).is_pending());
        eventually("it to hold", SOON, async || {
            near.try_take("k").await.is_err()
        })
        .await;
        eventually("it to be free", SOON, async || {
            near.try_take("k").await.is_ok()
        })
        .await;
        // Who is polled again asks anew.
        assert!(forgotten.await.unwrap().release().await.unwrap());
    }))
    .await;
}

/// It waited, and was granted what became free.
#[tokio::test]
async fn a_grant_is_not_taken_up() {
    let server = RedisServer::start().await;
    let [near, far] = two_of_each(&server);
    for (near, far) in near.iter().zip(&far) {
        let holder = near.take("k").await.unwrap();
        let mut forgotten = Box::pin(far.take("k"));
        eventually("it to wait", SOON, async || {
            assert!(poll!(forgotten.as_mut()).is_pending());
            near.waiting(&server, "k") == 1
        })
        .await;
        assert!(holder.release().await.unwrap());
        let next = tokio::time::timeout(SOON, near.take("k"))
            .await
            .expect("it is kept by nobody")
            .unwrap();
        assert!(next.release().await.unwrap());
        assert!(forgotten.await.unwrap().release().await.unwrap());
    }
}
