//! The server's clock was set: back by two hours, so that what its state says is two hours longer than it was to be; or
//! forward, so that what is held is over.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, timeout};
use tower_distributed::Lease;

use crate::leases::kinds::{Family, LONG, SOON, open};
use support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(2);
const BACK: Duration = Duration::from_secs(7200);

/// Has the server keep what is held for so long from now on, as after its clock was set.
fn keeps(server: &RedisServer, family: &Family, taken: &Lease, left: Duration) {
    let holders = family.holders("k");
    if let Family::Mutex(_) = family {
        assert_eq!(
            server.query(&["PEXPIRE", &holders, &left.as_millis().to_string()]),
            Ok(1)
        );
    } else {
        let (seconds, micros): (u64, u64) = server.query(&["TIME"]).unwrap();
        let end = (Duration::from_secs(seconds) + Duration::from_micros(micros) + left).as_micros();
        assert_eq!(
            server.query(&[
                "ZADD",
                &holders,
                "XX",
                "CH",
                &end.to_string(),
                taken.token()
            ]),
            Ok(1)
        );
    }
}

#[tokio::test]
async fn a_crashed_holder_is_gone_after_its_time_to_live() {
    let server = RedisServer::start().await;
    // Without a watchdog: nobody renews what they have.
    let far = Family::each_watched(&open(&server.url()), TTL, false);
    let near = Family::each(&open(&server.url()), TTL);
    join_all(near.iter().zip(&far).map(async |(near, far)| {
        let crashed = far.take("k").await.unwrap();
        keeps(&server, far, &crashed, BACK + TTL);
        // Whoever holds believes in no more than its time to live, since that is what others wait for.
        crashed.extend().await.unwrap();
        assert!(crashed.until() <= Instant::now() + TTL, "{}", far.name());
        std::mem::forget(crashed);
        let next = timeout(SOON, near.take("k"))
            .await
            .expect("it blocks for hours")
            .unwrap();
        assert!(next.is_held() && next.until() <= Instant::now() + TTL);
        assert!(next.release().await.unwrap());
    }))
    .await;
}

/// The clock was set forward: the server has ended what its holder believes in. That cannot be prevented. It lasts until the
/// next renewal, or for the time to live where nothing is renewed, and the fence tells which of the two is the later one.
#[tokio::test]
async fn two_believe_for_no_longer_than_a_time_to_live() {
    let server = &RedisServer::start().await;
    // The next renewal is due long before the first of these is over.
    for (watchdog, ttl) in [(true, 3 * TTL), (false, TTL / 2)] {
        let near = Family::each(&open(&server.url()), LONG);
        let far = Family::each_watched(&open(&server.url()), ttl, watchdog);
        join_all(near.iter().zip(&far).map(async |(near, far)| {
            let taken = far.take("k").await.unwrap();
            let until = taken.until();
            keeps(server, far, &taken, Duration::ZERO);
            let next = near.take("k").await.unwrap();
            assert!(until <= Instant::now() + ttl);
            timeout(SOON, taken.lost()).await.expect("it is never told");
            assert_eq!(
                Instant::now() < until,
                watchdog,
                "{} is told in time",
                far.name()
            );
            assert!(next.is_held() && next.handle().fence() >= taken.handle().fence());
            assert!(!taken.release().await.unwrap() && next.release().await.unwrap());
        }))
        .await;
    }
}
