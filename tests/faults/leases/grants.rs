//! What is granted to whoever waits is believed in for no longer than the server keeps it.

use std::time::Duration;

use tokio::time::timeout;
use tower_distributed::WaitGroup;

use crate::leases::kinds::{Family, LONG, SOON, open};
use support::eventually;
use support::redis_server::RedisServer;

/// A grant is for the time to live of whoever waits, not of whoever releases: else the first renewal makes it shorter
/// than its holder believes, and two hold.
#[tokio::test]
async fn a_grant_is_believed_in_for_no_longer_than_it_stands() {
    const SHORT: Duration = Duration::from_millis(100);
    let server = RedisServer::start().await;
    for releasing in [LONG, SHORT] {
        let near = Family::each_watched(&open(&server.url()), releasing, true);
        let far = Family::each_watched(&open(&server.url()), SHORT, false);
        for (near, far) in near.iter().zip(far) {
            let holder = near.take("k").await.unwrap();
            let waiter = tokio::spawn(async move { far.take("k").await.unwrap() });
            near.wait_for(&server, "k", 1).await;
            assert!(holder.release().await.unwrap());
            let granted = timeout(SOON, waiter).await.unwrap().unwrap();
            let mut next = None;
            eventually("the grant to be over", SOON, async || {
                next = near.try_take("k").await.ok();
                next.is_some()
            })
            .await;
            assert!(!granted.is_held(), "two believe to hold {}", near.name());
            assert!(next.unwrap().release().await.unwrap());
        }
    }
}

/// A permit that its holder lets go of is kept for its time to live, also where it was waited for.
#[tokio::test]
async fn a_permit_that_was_waited_for_is_given_away_whole() {
    let server = RedisServer::start().await;
    let [near, far] = [(); 2].map(|()| {
        WaitGroup::builder(1)
            .ttl(LONG)
            .build(&open(&server.url()), "g")
            .unwrap()
    });
    let first = near.add("k").await.unwrap();
    let waiter = tokio::spawn(async move { far.add("k").await.unwrap().into_id() });
    Family::Permits(near.clone())
        .wait_for(&server, "k", 1)
        .await;
    assert!(first.done().await.unwrap());
    let id = timeout(SOON, waiter).await.unwrap().unwrap();
    let left = async || {
        let holder: Vec<String> = server
            .query(&["ZRANGE", "td:{g:k}:permits:holders", "0", "0", "WITHSCORES"])
            .unwrap();
        let (now, _): (u64, u64) = server.query(&["TIME"]).unwrap();
        holder[1].parse::<f64>().unwrap() / 1e6 - now as f64
    };
    eventually("it to be kept", SOON, async || {
        left().await > LONG.as_secs_f64() / 2.0
    })
    .await;
    assert!(near.done(&id).await.unwrap());
}
