//! While the store is away.

use tokio_test::task;
use tower::{Layer as _, ServiceExt as _};
use tower_distributed::{DedupeLayer, RefusalKind};

use crate::dedupe::exact;
use crate::flights::kind;
use crate::items::{by_name, dedupe};
use crate::probe::Probe;
use crate::stores::{gone, shared_by};

/// A layer of one's own is no memory of one's own, in either mode.
#[tokio::test]
async fn routes_with_one_dedupe_share_what_they_remember() {
    let store = gone().await;
    for seen in [dedupe(&store), exact(&store)] {
        let route = || DedupeLayer::new(seen.clone(), by_name).on_store_failure(shared_by(1));
        let handled = route().layer(Probe::default()).oneshot("a").await.unwrap();
        assert_eq!(handled, "a");
        let error = route()
            .layer(Probe::default())
            .oneshot("a")
            .await
            .unwrap_err();
        assert_eq!(kind(&error), Some(RefusalKind::Duplicate));

        let hanging = Probe::hanging();
        let mut first = task::spawn(route().layer(hanging.clone()).oneshot("b"));
        hanging.runs(1, &mut first).await;
        let error = route()
            .layer(Probe::default())
            .oneshot("b")
            .await
            .unwrap_err();
        assert_eq!(kind(&error), Some(RefusalKind::InFlight));
    }
}
