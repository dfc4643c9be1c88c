//! Leases that outlive the runtime that they began on.

use tower_distributed::Store;

use crate::leases::kinds::{Family, LONG, SOON, open};
use support::eventually;
use support::redis_server::RedisServer;

/// The runtime that it was got on is gone: a drop gives it back all the same, from wherever it happens.
#[test]
fn a_lease_outlives_its_runtime() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
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
