//! A lease tells when it is over.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_test::{assert_pending, task};

use crate::leases::kinds::{Family, LONG, SOON, Taken, left, open, with_proxy};
use support::eventually;
use support::proxy::FaultProxy;

/// Returns a lease that was lost while a renewal was under way: it may come too late, or too soon, where the machine is busy.
async fn lost_during_a_renewal(
    family: &Family,
    proxy: &FaultProxy,
    fault: fn(&FaultProxy),
) -> Taken {
    let mut lost = None;
    eventually("a lease that is lost during a renewal", SOON, async || {
        let Ok(taken) = family.take("k").await else {
            return false;
        };
        let dropped = proxy.replies_dropped();
        fault(proxy);
        timeout(SOON, taken.lost())
            .await
            .expect("a hanging renewal hides the loss");
        let is_under_way = proxy.held_back() + proxy.replies_dropped() > dropped;
        if is_under_way {
            lost = Some(taken);
        } else {
            proxy.heal();
        }
        is_under_way
    })
    .await;
    lost.unwrap()
}

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
            let taken = lost_during_a_renewal(&family, &proxy, fault).await;
            assert!(!taken.is_held() && Instant::now() >= taken.until());
            let until = taken.until();
            proxy.heal();
            assert!(taken.extend().await.unwrap_err().is_lost());
            assert!(!taken.is_held() && taken.until() == until);
            drop(taken);
            eventually("nothing to be left", SOON, async || {
                left(&server, "k").is_empty()
            })
            .await;
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
        assert!(
            !handle.is_held(),
            "it is believed in while it is given away"
        );
        timeout(SOON, handle.lost()).await.expect("nobody is told");
        proxy.heal();
        assert!(release.await.unwrap());
    }
}
