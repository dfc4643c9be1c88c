//! A lease tells when it is over.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_test::{assert_pending, task};

use crate::leases::kinds::{Family, LONG, SOON, left, open, with_proxy};
use support::eventually;
use support::proxy::FaultProxy;

/// Nobody answers the renewal, or the answer is lost: the lease ends by its own timer, no late answer revives it, and then it
/// is given back.
#[tokio::test]
async fn a_renewal_that_hangs_hides_no_loss() {
    const TTL: Duration = Duration::from_secs(1);
    let (server, proxy) = with_proxy().await;
    // Calls do not time out while it matters when answers come.
    let store = open(&proxy.url());
    for fault in [FaultProxy::stall, FaultProxy::drop_replies] {
        for family in Family::each(&store, TTL) {
            let mut taken = None;
            eventually("the way to be free", SOON, async || {
                taken = family.take("k").await.ok();
                taken.is_some()
            })
            .await;
            let (taken, dropped) = (taken.unwrap(), proxy.replies_dropped());
            fault(&proxy);
            timeout(SOON, taken.lost()).await.expect("a hanging renewal hides the loss");
            assert!(proxy.held_back() + proxy.replies_dropped() > dropped, "no renewal is under way");
            assert!(!taken.is_held() && Instant::now() >= taken.until());
            let until = taken.until();
            proxy.heal();
            assert!(taken.extend().await.unwrap_err().is_lost());
            assert!(!taken.is_held() && taken.until() == until);
            drop(taken);
            eventually("nothing to be left", SOON, async || left(&server, "k").is_empty()).await;
        }
    }
}

/// What watches a lease does not believe in it any more once its release is under way: another may hold it by then.
#[tokio::test]
async fn what_is_being_released_is_not_believed_in() {
    let (_server, proxy) = with_proxy().await;
    for family in Family::each(&open(&proxy.url()), LONG) {
        let taken = family.take("k").await.unwrap();
        let handle = taken.handle();
        proxy.stall();
        let mut release = task::spawn(taken.release());
        assert_pending!(release.poll());
        assert!(!handle.is_held(), "it is believed in while it is given away");
        timeout(SOON, handle.lost()).await.expect("nobody is told");
        proxy.heal();
        assert!(release.await.unwrap());
    }
}
