//! The server's clock was set: back by two hours, so that what its state says is two hours longer than it was to be; or
//! forward, so that what is held is over.

use std::time::Duration;

use tower_distributed::Lease;

use crate::kinds::{Family, SOON, open};
use crate::support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(2);
const BACK: Duration = Duration::from_secs(7200);

/// What a crashed process holds.
async fn crashed(server: &RedisServer, family: &Family, key: &str) {
    let taken = family.take(key).await.unwrap();
    std::mem::forget(taken);
    let holders = family.holders(key);
    if let Family::Mutex(_) = family {
        let left = (BACK + TTL).as_millis().to_string();
        assert_eq!(server.query(&["PEXPIRE", &holders, &left]), Ok(1));
    } else {
        let held: Vec<String> = server.query(&["ZRANGE", &holders, "0", "-1"]).unwrap();
        let by = BACK.as_micros().to_string();
        server.query::<String>(&["ZINCRBY", &holders, &by, &held[0]]).unwrap();
    }
}

#[tokio::test]
async fn a_crashed_holder_is_gone_after_its_time_to_live() {
    let server = RedisServer::start().await;
    // Without a watchdog: nobody renews what they have.
    let far = Family::each_watched(&open(&server.url()), TTL, false);
    let near = Family::each(&open(&server.url()), TTL);
    for (near, far) in near.iter().zip(&far) {
        crashed(&server, far, "k").await;
        let next = tokio::time::timeout(SOON, near.take("k")).await.expect("it blocks for hours").unwrap();
        assert!(next.is_held() && next.until() <= tokio::time::Instant::now() + TTL);
        assert!(next.release().await.unwrap());
    }
}

/// Whoever holds believes in no more than its time to live, since that is what others wait for.
#[tokio::test]
async fn a_holder_believes_in_no_more_than_its_time_to_live() {
    let server = RedisServer::start().await;
    for family in Family::each_watched(&open(&server.url()), TTL, false) {
        let taken = family.take("k").await.unwrap();
        let holders = family.holders("k");
        if let Family::Mutex(_) = family {
            let left = (BACK + TTL).as_millis().to_string();
            assert_eq!(server.query(&["PEXPIRE", &holders, &left]), Ok(1));
        } else {
            let by = BACK.as_micros().to_string();
            server.query::<String>(&["ZINCRBY", &holders, &by, taken.token()]).unwrap();
        }
        taken.extend().await.unwrap();
        assert!(taken.until() <= tokio::time::Instant::now() + TTL, "{}", family.name());
        assert!(taken.release().await.unwrap());
    }
}

/// The clock was set forward: the server has ended what its holder believes in. That cannot be prevented. It lasts until the
/// next renewal, or for the time to live where nothing is renewed, and the fence tells which of the two is the later one.
#[tokio::test]
async fn two_believe_for_no_longer_than_a_time_to_live() {
    let server = RedisServer::start().await;
    let near = Family::each(&open(&server.url()), TTL);
    for watchdog in [true, false] {
        let far = Family::each_watched(&open(&server.url()), TTL, watchdog);
        for (near, far) in near.iter().zip(&far) {
            let taken = far.take("k").await.unwrap();
            let holders = family_ends(&server, far, &taken);
            let next = near.take("k").await.unwrap();
            let began = tokio::time::Instant::now();
            tokio::time::timeout(SOON, taken.lost()).await.expect("it is never told");
            let overlap = began.elapsed();
            println!("{} watchdog {watchdog}: two believed for {overlap:?} of {TTL:?}", far.name());
            assert!(overlap <= TTL && (!watchdog || overlap <= TTL / 2), "{overlap:?}");
            assert!(next.is_held() && next.handle().fence() >= taken.handle().fence());
            assert!(!taken.release().await.unwrap() && next.release().await.unwrap(), "{holders}");
        }
    }
}

/// Ends what is held, as a clock does that jumps beyond its end.
fn family_ends(server: &RedisServer, family: &Family, taken: &Lease) -> String {
    let holders = family.holders("k");
    if let Family::Mutex(_) = family {
        assert_eq!(server.query(&["PEXPIRE", &holders, "-1"]), Ok(1));
    } else {
        server.query::<u64>(&["ZADD", &holders, "1", taken.token()]).unwrap();
    }
    holders
}
