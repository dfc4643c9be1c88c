//! An upstream answers 429 with Retry-After to one process: all processes stop.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::response::RetryAfter;
use tower_distributed::{RateLimitLayer, Refusal, TokenBucket};

use crate::stores::{SOON, Stores, at_most, on_each_store};
use support::eventually;

on_each_store!(whatever_refuses_and_however_it_says_so);

/// Fractions, units and dates of RFC 3339 are in use, and other statuses than 429 and 503. What is no refusal, or does not
/// say when, stops nobody.
async fn whatever_refuses_and_however_it_says_so(stores: Stores) {
    let (here, there) = (at_most(100, &stores.open()), at_most(100, &stores.open()));
    for (status, retry_after, stops) in [
        (429, Some("299.997"), true),
        (429, Some("30s"), true),
        (429, Some("2999-01-01T00:00:00Z"), true),
        (503, Some("30"), true),
        (403, Some("30"), true),
        (529, Some("30"), true),
        (429, None, false),
        (429, Some("soon"), false),
        (200, Some("30"), false),
        (302, Some("30"), false),
    ] {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let upstream = service_fn(move |_: Request<()>| {
            counted.fetch_add(1, Ordering::SeqCst);
            let response = Response::builder().status(status);
            let response =
                retry_after.into_iter().fold(response, |to, after| to.header("retry-after", after));
            std::future::ready(Ok::<_, Infallible>(response.body(()).unwrap()))
        });
        let believing = |bucket: &TokenBucket| {
            let limit = RateLimitLayer::new(bucket.clone(), |_: &Request<()>| "upstream");
            limit.block_on_response(RetryAfter::default()).layer(upstream.clone())
        };
        let response = believing(&here).oneshot(Request::new(())).await.unwrap();
        assert_eq!(response.status(), status, "the first caller hears it for itself");
        if stops {
            // Until the block, which travels by itself, is to be seen by another process.
            eventually("the key to be blocked", SOON, async || {
                !there.peek("upstream").await.unwrap().blocked_for().is_zero()
            })
            .await;
            let error = believing(&there).oneshot(Request::new(())).await.unwrap_err();
            let after = error.downcast_ref::<Refusal>().unwrap().retry_after().unwrap();
            assert!(after > Duration::from_secs(15), "{after:?}");
            for bucket in [&here, &there] {
                bucket.reset("upstream").await.unwrap();
            }
        } else {
            // A block would by now be seen: it would have left before this.
            here.block_for("marker", SOON).await.unwrap();
            assert_eq!(there.peek("upstream").await.unwrap().blocked_for(), Duration::ZERO);
        }
        assert_eq!(requests.load(Ordering::SeqCst), 1, "{status} {retry_after:?}");
    }
}
