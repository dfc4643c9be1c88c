//! What requests cost, who is not limited, who is banned, and under which quotas a request comes.

use std::time::Duration;

use tower::{Layer as _, Service, ServiceExt as _};
use tower_distributed::token_bucket::Ban;
use tower_distributed::{Quota, QuotaTable, Quotas, RateLimitLayer, Store, TokenBucket};

use crate::probe::Probe;
use crate::stores::{SOON, Stores, at_most, on_each_store};
use support::eventually;

on_each_store!(what_a_response_cost_is_charged_after_it,);

fn everything(_: &u32) -> &'static str {
    "everything"
}

async fn passes<S: Service<u32> + Clone>(service: &S, request: u32) -> bool {
    service.clone().oneshot(request).await.is_ok()
}

async fn what_a_response_cost_is_charged_after_it(stores: Stores) {
    let bucket = TokenBucket::new(&stores.open(), "limits", Quota::per_hour(60).burst(10)).unwrap();
    let layer = RateLimitLayer::new(bucket.clone(), everything).cost_of_response(|response: &u32| *response);
    let service = layer.layer(Probe::default());
    assert!(passes(&service, 4).await);
    eventually("the charge", SOON, async || bucket.peek("everything").await.unwrap().remaining() == 5).await;
    assert!(passes(&service, 14).await, "there is a token");
    let debt = async || bucket.peek("everything").await.unwrap().available_after(1).unwrap();
    eventually("the debt of 10", SOON, async || debt().await > Duration::from_secs(10 * 60)).await;
    assert!(!passes(&service, 0).await, "none is admitted in debt");
    bucket.give_back("everything", 11).await.unwrap();
    // The refusal was told to this layer, whose value of the bucket is another.
    eventually("a token", SOON, async || passes(&service, 0).await).await;
}

#[test]
fn settings_out_of_range_are_told() {
    let layer = RateLimitLayer::<u32, ()>::new(at_most(1, &Store::in_memory()), |key: &u32| *key);
    for (refusals, span) in [(0, Duration::from_secs(1)), (5, Duration::ZERO), (5, Duration::MAX)] {
        let error = layer.clone().ban(Ban::after(refusals, span)).unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains("ban"), "{error}");
    }
    let shrinks = Ban::after(5, Duration::from_secs(60)).growing_up_to(Duration::from_secs(1));
    assert!(layer.ban(shrinks).unwrap_err().to_string().contains("1s"));
    let twice = QuotaTable::new([("a", "2/h"), ("a", "3/h")]).unwrap_err();
    assert!(twice.is_invalid() && twice.to_string().contains("\"a\""), "{twice}");
}

/// Quotas that are set after a table, or a table after quotas, do not discard what was set before.
#[tokio::test]
async fn quotas_after_a_table_do_not_discard_it() {
    let layer = || RateLimitLayer::new(at_most(5, &Store::in_memory()), |request: &u32| *request);
    let table = || QuotaTable::new([("row", "2/h")]).unwrap();
    let row = |request: &u32| (*request != 9).then_some("row");
    let three = |request: &u32| (*request > 7).then(|| "3/h".parse::<Quotas>().unwrap());
    let looked_up = |request: &u32| {
        Box::pin(std::future::ready((*request > 7).then(|| "3/h".parse::<Quotas>().unwrap())))
    };
    for (layer, expected) in [
        (layer().quota_table(table(), row).quotas(|_: &u32| None::<Quotas>), [2, 2, 5]),
        (layer().quota_table(table(), row).quotas(three), [2, 3, 3]),
        (layer().quota_table(table(), row).quotas(looked_up), [2, 3, 3]),
        (layer().quotas(three).quota_table(table(), row), [2, 2, 3]),
        (layer().quotas(looked_up).quota_table(table(), row), [2, 2, 3]),
    ] {
        let service = layer.layer(Probe::default());
        for (request, expected) in [7, 8, 9].into_iter().zip(expected) {
            let mut admitted = 0;
            for _ in 0..6 {
                admitted += u32::from(passes(&service, request).await);
            }
            assert_eq!(admitted, expected, "{request}");
        }
    }
}
