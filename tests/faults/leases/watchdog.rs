//! Leases that are renewed, and that outlive the runtime that they began on.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;
use tower_distributed::{Mutex, Store};

use crate::leases::kinds::{Family, LONG, SOON, open};
use support::eventually;
use support::redis_server::RedisServer;

/// Each kind, and a quorum.
#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_for_many_times_its_time_to_live() {
    const TTL: Duration = Duration::from_secs(6);
    let stores = [(); 3].map(|()| Store::in_memory());
    let mut families = Family::each(&stores[0], TTL).to_vec();
    families.push(Family::Mutex(Mutex::builder().ttl(TTL).build_quorum(stores, "quorum").unwrap()));
    let kept = families.iter().map(|family| async move {
        let taken = family.take("k").await.unwrap();
        let (first, token) = (taken.until(), taken.token().to_owned());
        assert!(timeout(100 * TTL, taken.lost()).await.is_err(), "{} was lost", family.name());
        assert!(taken.is_held() && taken.token() == token && taken.until() > first + 99 * TTL);
        assert!(family.try_take("k").await.unwrap_err().is_refused());
        assert!(taken.release().await.unwrap());
        family.try_take("k").await.unwrap().release().await.unwrap()
    });
    assert!(join_all(kept).await.into_iter().all(|was_held| was_held));
}

/// The runtime that it was got on is gone: a drop gives it back all the same, from wherever it happens.
#[test]
fn a_lease_outlives_its_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime().block_on(RedisServer::start());
    for kind in 0..3 {
        // Its connection goes with the runtime too, so each has a store of its own.
        for store in [Store::in_memory(), open(&server.url())] {
            let family = &Family::each(&store, LONG)[kind];
            let first = runtime();
            let taken = first.block_on(family.take("k")).unwrap();
            let mut waiting = tokio_test::task::spawn(family.take("k"));
            first.block_on(async { tokio_test::assert_pending!(waiting.poll()) });
            drop(first);
            drop((waiting, taken));
            let is_free = async || match family.try_take("k").await {
                Ok(taken) => taken.release().await.is_ok(),
                Err(error) => !error.is_refused() && !error.is_unavailable(),
            };
            runtime().block_on(eventually("it to be released", SOON, is_free));
        }
    }
}
