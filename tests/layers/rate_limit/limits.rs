//! Under which quotas a request comes, and settings that are refused.

use std::time::Duration;

use tower::{Layer as _, ServiceExt as _};
use tower_distributed::token_bucket::Ban;
use tower_distributed::{QuotaTable, Quotas, RateLimitLayer, Store};

use crate::probe::Probe;
use crate::stores::at_most;

#[test]
fn settings_out_of_range_are_told() {
    let layer = RateLimitLayer::<u32, ()>::new(at_most(1, &Store::in_memory()), |key: &u32| *key);
    for (refusals, span) in [
        (0, Duration::from_secs(1)),
        (5, Duration::ZERO),
        (5, Duration::MAX),
    ] {
        let error = layer.clone().ban(Ban::after(refusals, span)).unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains("ban"),
            "{error}"
        );
    }
    let shrinks = Ban::after(5, Duration::from_secs(60)).growing_up_to(Duration::from_secs(1));
    assert!(layer.ban(shrinks).unwrap_err().to_string().contains("1s"));
    let twice = QuotaTable::new([("a", "2/h"), ("a", "3/h")]).unwrap_err();
    assert!(
        twice.is_invalid() && twice.to_string().contains("\"a\""),
        "{twice}"
    );
}

/// Quotas that are set after a table, or a table after quotas, do not discard what was set before.
#[tokio::test]
async fn quotas_after_a_table_do_not_discard_it() {
    let layer = || RateLimitLayer::new(at_most(5, &Store::in_memory()), |request: &u32| *request);
    let table = || QuotaTable::new([("row", "2/h")]).unwrap();
    let row = |request: &u32| (*request != 9).then_some("row");
    let three = |request: &u32| (*request > 7).then(|| "3/h".parse::<Quotas>().unwrap());
    let looked_up = |request: &u32| {
        Box::pin(std::future::ready(
            (*request > 7).then(|| "3/h".parse::<Quotas>().unwrap()),
        ))
    };
    for (layer, expected) in [
        (
            layer()
                .quota_table(table(), row)
                .quotas(|_: &u32| None::<Quotas>),
            [2, 2, 5],
        ),
        (layer().quota_table(table(), row).quotas(three), [2, 3, 3]),
        (
            layer().quota_table(table(), row).quotas(looked_up),
            [2, 3, 3],
        ),
        (layer().quotas(three).quota_table(table(), row), [2, 2, 3]),
        (
            layer().quotas(looked_up).quota_table(table(), row),
            [2, 2, 3],
        ),
    ] {
        let service = layer.layer(Probe::default());
        for (request, expected) in [7, 8, 9].into_iter().zip(expected) {
            let mut admitted = 0;
            for _ in 0..6 {
                admitted += u32::from(service.clone().oneshot(request).await.is_ok());
            }
            assert_eq!(admitted, expected, "{request}");
        }
    }
}
