//! A quota of 0 admits nothing, and a look-up of quotas that fails admits nobody under others.

use std::time::Duration;

use tower::{BoxError, Layer as _, Service, ServiceExt as _};
use tower_distributed::fleet::FleetTable;
use tower_distributed::token_bucket::Ban;
use tower_distributed::{
    BudgetLayer, FleetQuotas, Quota, QuotaTable, Quotas, RateLimitLayer, Refusal, RefusalKind,
    TokenBucket, TokenBuckets,
};

use crate::probe::Probe;
use crate::stores::{SOON, Stores, at_most, on_each_store};

on_each_store!(
    quotas_of_zero_refuse_and_others_admit_again,
    a_row_of_zero_closes_a_route,
    one_of_several_limits_is_closed,
    a_closed_budget_holds_nothing,
    a_closed_bucket_keeps_its_state,
    a_look_up_of_quotas_that_fails_refuses,
);

/// The kind of a refusal; `None`: the request passes.
async fn refused<S>(service: &S, request: u32) -> Option<RefusalKind>
where
    S: Service<u32, Error = BoxError> + Clone,
{
    let error = service.clone().oneshot(request).await.err()?;
    Some(
        error
            .downcast_ref::<Refusal>()
            .unwrap_or_else(|| panic!("{error}"))
            .kind(),
    )
}

const LIMITED: Option<RefusalKind> = Some(RefusalKind::RateLimited);

/// Nobody is banned for it: else all clients would be, when the switch is turned on again.
async fn quotas_of_zero_refuse_and_others_admit_again(stores: Stores) {
    let store = stores.open();
    let quotas = FleetQuotas::new(&store, "switch", "100/h").unwrap();
    let bucket = TokenBucket::new(&store, "switch", quotas.current()).unwrap();
    let hour = Duration::from_secs(3600);
    let layer = RateLimitLayer::new(bucket.clone(), |_: &u32| "all").max_wait(hour);
    let inner = Probe::default();
    let layer = layer
        .quotas(quotas.clone())
        .ban(Ban::after(2, hour))
        .unwrap();
    let service = layer.layer(inner.clone());
    assert_eq!(refused(&service, 1).await, None);
    quotas.set("0/s", "ann").await.unwrap();
    // Nobody waits for what will not come.
    let error = service.clone().oneshot(1).await.unwrap_err();
    let refusal = error.downcast_ref::<Refusal>().unwrap();
    assert_eq!(
        (refusal.kind(), refusal.retry_after()),
        (RefusalKind::RateLimited, None)
    );
    assert!(refusal.to_string().contains("the limit is 0"), "{refusal}");
    let decision = refusal.decision().unwrap();
    assert_eq!(
        (decision.refused_by(), decision.remaining()),
        (Some("default"), 0)
    );
    assert_eq!(
        (
            decision.state.tightest().limit,
            decision.state.tightest().window
        ),
        (0, None)
    );
    for _ in 0..10 {
        assert_eq!(refused(&service, 1).await, LIMITED);
    }
    quotas.set("100/h", "ann").await.unwrap();
    // A ban would have left before this.
    bucket.block_for("marker", SOON).await.unwrap();
    assert_eq!(refused(&service, 1).await, None);
    assert_eq!(inner.calls(), 2);
}

async fn a_row_of_zero_closes_a_route(stores: Stores) {
    let store = stores.open();
    let table = FleetTable::new(&store, "routes", "closed = 5/h; 0/s\nopen = 5/h").unwrap();
    let row = |request: &u32| if *request == 0 { "closed" } else { "open" };
    let fixed = QuotaTable::new([("closed", "0/day"), ("open", "5/h")]).unwrap();
    let layer = || RateLimitLayer::new(at_most(5, &store), |_: &u32| "all");
    for layer in [
        layer().quota_table(table, row),
        layer().quota_table(fixed, row),
    ] {
        let service = layer.layer(Probe::default());
        assert_eq!(
            (refused(&service, 0).await, refused(&service, 1).await),
            (LIMITED, None)
        );
    }
}

async fn one_of_several_limits_is_closed(stores: Stores) {
    let store = stores.open();
    let bucket = |name, quotas: &str| TokenBucket::new(&store, name, quotas).unwrap();
    let limits = TokenBuckets::new([bucket("users", "5/h"), bucket("all", "0/s")]).unwrap();
    let layer = RateLimitLayer::all_of(
        limits,
        (|_: &u32| "ann", |key: &u32| (*key == 0).then_some("all")),
    );
    let service = layer.layer(Probe::default());
    let error = service.clone().oneshot(0).await.unwrap_err();
    let decision = error.downcast_ref::<Refusal>().unwrap().decision().unwrap();
    assert_eq!(
        (decision.refused_by(), decision.retry_after()),
        (Some("all"), None)
    );
    assert_eq!(
        bucket("users", "5/h")
            .peek("ann")
            .await
            .unwrap()
            .remaining(),
        5,
        "nothing was charged"
    );
    // It is not asked.
    assert_eq!(refused(&service, 1).await, None);
}

async fn a_closed_budget_holds_nothing(stores: Stores) {
    let store = stores.open();
    let bucket = |name, quotas: &str| TokenBucket::new(&store, name, quotas).unwrap();
    let one = BudgetLayer::new(bucket("closed", "0/s"), |_: &u32| "ann", |_: &u32| 3);
    assert_eq!(refused(&one.layer(Probe::default()), 0).await, LIMITED);
    let error = bucket("closed", "0/s")
        .authorize("ann", 3)
        .await
        .unwrap_err();
    assert!(error.is_refused() && error.decision().is_some(), "{error}");
    let limits = TokenBuckets::new([bucket("open", "5/h"), bucket("closed", "0/s")]).unwrap();
    let error = limits.authorize(["ann", "ann"], 1).await.unwrap_err();
    assert_eq!(
        error.decision().and_then(|decision| decision.refused_by()),
        Some("closed")
    );
    assert_eq!(bucket("open", "5/h").peek("ann").await.unwrap().held(), 0);
}

async fn a_closed_bucket_keeps_its_state(stores: Stores) {
    let store = stores.open();
    let [open, closed] =
        ["10/h", "0/s"].map(|quotas| TokenBucket::new(&store, "a", quotas).unwrap());
    open.allow_n("k", 4).await.unwrap();
    let state = closed.peek("k").await.unwrap();
    assert_eq!(
        (
            state.remaining(),
            state.available_after(1),
            state.reset_after()
        ),
        (0, None, None)
    );
    assert!(
        closed
            .reserve("k")
            .await
            .is_err_and(|error| error.is_refused())
    );
    assert!(
        closed.allow_n("k", 0).await.unwrap().is_admitted(),
        "what costs nothing is not limited"
    );
    assert_eq!(open.peek("k").await.unwrap().remaining(), 6);
    closed.block_for("k", SOON).await.unwrap();
    assert!(!open.peek("k").await.unwrap().blocked_for().is_zero());
    assert_eq!(closed.peek("k").await.unwrap().remaining(), 0);
}

/// Not under the default quotas.
async fn a_look_up_of_quotas_that_fails_refuses(stores: Stores) {
    let layer = || RateLimitLayer::new(at_most(1, &stores.open()), |key: &u32| *key);
    let plan = |key: u32| match key {
        0 => Err("the database is away"),
        1 => Ok(None),
        _ => Ok(Some("2/h".parse::<Quotas>().unwrap())),
    };
    let at_once = layer().quotas(move |key: &u32| plan(*key));
    let looked_up = layer().quotas(move |key: &u32| {
        let key = *key % 10;
        Box::pin(async move {
            tokio::task::yield_now().await;
            plan(key)
        })
    });
    let before = layer()
        .quotas(|_: &u32| None::<Quotas>)
        .quotas(move |key: &u32| plan(*key % 20));
    let after = layer()
        .quotas(move |key: &u32| plan(*key % 30))
        .quotas(|_: &u32| None::<Quotas>);
    for (layer, key) in [(at_once, 0), (looked_up, 10), (before, 20), (after, 30)] {
        let inner = Probe::default();
        let service = layer.clone().layer(inner.clone());
        let error = service.clone().oneshot(key).await.unwrap_err();
        let refusal = error.downcast_ref::<Refusal>().unwrap();
        assert_eq!(refusal.kind(), RefusalKind::LookUpFailed);
        let source = std::error::Error::source(refusal.get_ref()).map(ToString::to_string);
        assert_eq!(source.as_deref(), Some("the database is away"));
        assert_eq!(inner.calls(), 0);
        let shadow = layer.shadow().layer(Probe::default());
        assert_eq!(
            (
                refused(&shadow, key).await,
                refused(&service, key + 1).await
            ),
            (None, None)
        );
        for expected in [None, None, LIMITED] {
            assert_eq!(refused(&service, key + 2).await, expected);
        }
    }
}

/// A kill switch is for upstreams as well.
#[cfg(feature = "http")]
#[tokio::test]
async fn a_closed_limit_stays_closed_whatever_was_learned() {
    use http::Response;
    use tower_distributed::response::UpstreamLimits;

    let store = tower_distributed::Store::in_memory();
    let quotas = FleetQuotas::new(&store, "switch", "100/h").unwrap();
    let bucket = TokenBucket::new(&store, "switch", "100/h").unwrap();
    let layer = RateLimitLayer::new(bucket.clone(), |_: &u32| "all").quotas(quotas.clone());
    let layer = layer.learn(UpstreamLimits::default());
    let upstream = tower::service_fn(async |_: u32| {
        let policy = ("ratelimit-policy", "\"default\";q=1000;w=1");
        Ok::<_, BoxError>(
            Response::builder()
                .header(policy.0, policy.1)
                .body(())
                .unwrap(),
        )
    });
    let service = layer.layer(upstream);
    assert_eq!(refused(&service, 1).await, None);
    let limit = service.clone().oneshot(1).await.unwrap();
    assert_eq!(limit.status(), 200);
    quotas.set("0/s", "ann").await.unwrap();
    assert_eq!(refused(&service, 1).await, LIMITED);
    quotas.set("100/h", "ann").await.unwrap();
    assert_eq!(refused(&service, 1).await, None);
}

/// An error of this crate stays what it is.
#[tokio::test]
async fn a_look_up_may_say_that_the_request_is_bad() {
    let bucket = at_most(1, &tower_distributed::Store::in_memory());
    let layer = RateLimitLayer::new(bucket, |key: &u32| *key).quotas(|_: &u32| {
        Err::<Quotas, _>(tower_distributed::Error::bad_request("the plan is unknown"))
    });
    assert_eq!(
        refused(&layer.layer(Probe::default()), 1).await,
        Some(RefusalKind::BadRequest)
    );
}

/// A table that changes between two reads does not give a request the bucket of one row and the quotas of none.
#[tokio::test]
async fn a_table_is_read_once_for_each_request() {
    let store = tower_distributed::Store::in_memory();
    let bucket = TokenBucket::new(&store, "a", Quota::per_hour(9)).unwrap();
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = asked.clone();
    let row = move |_: &u32| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        "row"
    };
    let table = FleetTable::new(&store, "a", "row = 5/h").unwrap();
    let layer: RateLimitLayer<u32, u32> =
        RateLimitLayer::new(bucket, |_: &u32| "all").quota_table(table, row);
    assert_eq!(refused(&layer.layer(Probe::default()), 1).await, None);
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 1);
}
