//! A layer by several limits: per caller, per tenant, and for all.

use std::num::NonZeroU32;
use std::time::Duration;

use tower::{Layer as _, Service, ServiceExt as _};
use tower_distributed::token_bucket::Ban;
use tower_distributed::{
    Key, Quota, QuotaTable, Quotas, RateLimitLayer, Refusal, RefusalKind, Store, StoreFailure,
    TokenBucket, TokenBuckets,
};

use crate::probe::Probe;
use crate::stores::{SOON, Stores, away, on_each_store};
use support::eventually;

on_each_store!(
    bans_and_blocks_are_of_the_first_limit,
    quotas_are_those_of_the_first_limit,
    a_request_waits_for_all_limits,
    what_it_cost_is_charged_to_all,
    rows_of_two_tables_are_apart,
    refusals_are_known,
);

/// A request of caller `n` of tenant `n / 10`; those of tenant 9 have none.
type Request = u32;

fn caller(request: &Request) -> u32 {
    *request
}

fn tenant(request: &Request) -> Option<u32> {
    (request / 10 != 9).then_some(request / 10)
}

fn everybody(_: &Request) -> &'static str {
    "everybody"
}

#[expect(clippy::type_complexity, reason = "an extractor for each limit")]
const KEYS: (
    fn(&Request) -> u32,
    fn(&Request) -> Option<u32>,
    fn(&Request) -> &'static str,
) = (caller, tenant, everybody);

fn buckets(store: &Store, bursts: [u32; 3]) -> [TokenBucket; 3] {
    let names = ["callers", "tenants", "all"];
    std::array::from_fn(|n| {
        TokenBucket::new(store, names[n], Quota::per_hour(1).burst(bursts[n])).unwrap()
    })
}

async fn ask<S>(service: &S, request: Request) -> Result<u32, Refusal>
where
    S: Service<Request, Response = u32, Error = tower::BoxError> + Clone,
{
    let asked = service.clone().oneshot(request).await;
    asked.map_err(|error| *error.downcast::<Refusal>().unwrap())
}

fn by(refused: Result<u32, Refusal>) -> String {
    let refusal = refused.unwrap_err();
    refusal.decision().unwrap().refused_by().unwrap().to_owned()
}

async fn bans_and_blocks_are_of_the_first_limit(stores: Stores) {
    let buckets = buckets(&stores.open(), [1, 100, 3]);
    let layer = RateLimitLayer::all_of(TokenBuckets::new(buckets.clone()).unwrap(), KEYS)
        .cache_refusals(false);
    let layer = layer.ban(Ban::after(3, Duration::from_secs(3600))).unwrap();
    let service = layer.clone().layer(Probe::default());
    let blocked = async |bucket: &TokenBucket, key: Key| {
        !bucket.peek(key).await.unwrap().blocked_for().is_zero()
    };
    assert!(ask(&service, 11).await.is_ok());
    eventually("the ban of the caller", SOON, async || {
        assert!(ask(&service, 11).await.is_err());
        blocked(&buckets[0], 11.into()).await
    })
    .await;
    assert!(
        !blocked(&buckets[1], 1.into()).await && !blocked(&buckets[2], "everybody".into()).await
    );
    assert!(ask(&service, 12).await.is_ok() && ask(&service, 13).await.is_ok());
    for _ in 0..10 {
        assert_eq!(by(ask(&service, 14).await), "all");
    }
    assert!(
        !blocked(&buckets[0], 14.into()).await && !blocked(&buckets[2], "everybody".into()).await
    );
    buckets[2].reset("everybody").await.unwrap();

    let observing = layer
        .block_on_response(|_: &u32| Some(Duration::from_secs(60)))
        .layer(Probe::default());
    assert!(ask(&observing, 15).await.is_ok());
    eventually("the block", SOON, async || {
        blocked(&buckets[0], 15.into()).await
    })
    .await;
    assert!(!blocked(&buckets[2], "everybody".into()).await);
    // Who is refused is banned, whoever else is blocked.
    assert!(ask(&service, 16).await.is_ok());
    buckets[2]
        .block_for("everybody", Duration::from_secs(3600))
        .await
        .unwrap();
    eventually("the ban of the caller", SOON, async || {
        assert!(ask(&service, 16).await.is_err());
        blocked(&buckets[0], 16.into()).await
    })
    .await;
}

async fn quotas_are_those_of_the_first_limit(stores: Stores) {
    let buckets = buckets(&stores.open(), [1, 100, 7]);
    let limits = TokenBuckets::new(buckets).unwrap();
    let table = QuotaTable::new([("odd", "3/h")]).unwrap();
    let row = |request: &Request| if request % 2 == 1 { "odd" } else { "even" };
    let layer = RateLimitLayer::all_of(limits.clone(), KEYS)
        .quotas(|request: &Request| {
            (*request == 12).then(|| Quotas::new([Quota::per_hour(2)]).unwrap())
        })
        .quota_table(table, row);
    let service = layer.layer(Probe::default());
    let mut admitted = [0, 0, 0];
    for _ in 0..4 {
        for (place, request) in [11, 12, 14].into_iter().enumerate() {
            admitted[place] += u32::from(ask(&service, request).await.is_ok());
        }
    }
    assert_eq!(admitted, [3, 2, 1]);
    assert!(ask(&service, 16).await.is_ok());
    assert_eq!(by(ask(&service, 18).await), "all");
    let error = RateLimitLayer::<_, ()>::all_of(limits, KEYS)
        .prefetch(Duration::from_millis(10))
        .unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("one limit"),
        "{error}"
    );
}

async fn a_request_waits_for_all_limits(stores: Stores) {
    let store = stores.open();
    let callers = TokenBucket::new(&store, "callers", Quota::per_second(20).burst(1)).unwrap();
    let all = TokenBucket::new(&store, "all", Quota::per_hour(1).burst(2)).unwrap();
    let limits = TokenBuckets::new([callers, all]).unwrap();
    let layer = RateLimitLayer::all_of(limits, (caller, everybody)).max_wait(SOON);
    let service = layer.layer(Probe::default());
    let began = tokio::time::Instant::now();
    assert!(ask(&service, 1).await.is_ok());
    assert!(ask(&service, 1).await.is_ok());
    assert!(
        began.elapsed() >= Duration::from_millis(40),
        "{:?}",
        began.elapsed()
    );
    // At once: there is none within `max_wait`.
    assert_eq!(
        ask(&service, 1).await.unwrap_err().kind(),
        RefusalKind::RateLimited
    );
    assert_eq!(by(ask(&service, 2).await), "all");
}

async fn what_it_cost_is_charged_to_all(stores: Stores) {
    let buckets = buckets(&stores.open(), [100, 200, 300]);
    let layer = RateLimitLayer::all_of(TokenBuckets::new(buckets.clone()).unwrap(), KEYS);
    let service = layer
        .cost_of_response(|response: &u32| *response)
        .layer(Probe::default());
    assert!(ask(&service, 12).await.is_ok());
    for (bucket, (key, left)) in buckets.iter().zip([
        (Key::from(12), 87),
        (Key::from(1), 187),
        (Key::from("everybody"), 287),
    ]) {
        eventually("the charge", SOON, async || {
            bucket.peek(&key).await.unwrap().remaining() == left
        })
        .await;
    }
}

async fn rows_of_two_tables_are_apart(stores: Stores) {
    let buckets = buckets(&stores.open(), [1, 1000, 1000]);
    let table = || QuotaTable::new([("row", "2/h")]).unwrap();
    let even = |request: &Request| if request.is_multiple_of(2) { "row" } else { "" };
    let odd = |request: &Request| if request.is_multiple_of(2) { "" } else { "row" };
    let one_caller = (
        |_: &Request| "caller",
        |_: &Request| None::<&str>,
        everybody,
    );
    let layer = RateLimitLayer::all_of(TokenBuckets::new(buckets).unwrap(), one_caller)
        .quota_table(table(), even)
        .quota_table(table(), odd);
    let service = layer.layer(Probe::default());
    for request in [10, 11, 10, 11] {
        assert!(ask(&service, request).await.is_ok(), "{request}");
    }
    assert!(ask(&service, 10).await.is_err() && ask(&service, 11).await.is_err());
}

async fn refusals_are_known(stores: Stores) {
    let store = stores.open();
    let buckets = buckets(&store, [100, 1, 100]);
    let layer = RateLimitLayer::all_of(TokenBuckets::new(buckets.clone()).unwrap(), KEYS);
    let service = layer.layer(Probe::default());
    assert!(ask(&service, 11).await.is_ok());
    for n in 0..5 {
        let refusal = ask(&service, 11).await.unwrap_err();
        let decision = refusal.decision().unwrap();
        assert_eq!(decision.refused_by(), Some("tenants"));
        assert_eq!(
            decision.is_local,
            n > 0 && store.to_string() != "in-memory",
            "{n}"
        );
    }
    assert_eq!(buckets[0].peek(11).await.unwrap().remaining(), 99);
    // Other tenants are not concerned.
    assert!(ask(&service, 21).await.is_ok());
}

#[tokio::test]
async fn each_process_has_its_share_of_all_limits() {
    let replicas = NonZeroU32::new(2).unwrap();
    let buckets = buckets(&away(), [4, 100, 6]);
    let layer = RateLimitLayer::all_of(TokenBuckets::new(buckets).unwrap(), KEYS)
        .on_store_failure(StoreFailure::LocalShare { replicas });
    let service = layer.layer(Probe::default());
    assert!(ask(&service, 1).await.is_ok() && ask(&service, 1).await.is_ok());
    assert_eq!(by(ask(&service, 1).await), "callers");
    assert!(ask(&service, 2).await.is_ok());
    assert_eq!(by(ask(&service, 2).await), "all");
    // What it cost comes off the share, by its rows too, in whatever order these were set.
    let table = QuotaTable::new([("row", "20/h")]).unwrap();
    let layer = RateLimitLayer::all_of(
        TokenBuckets::new(self::buckets(&away(), [99; 3])).unwrap(),
        KEYS,
    )
    .on_store_failure(StoreFailure::LocalShare { replicas })
    .cost_of_response(|response: &u32| *response)
    .quota_table(table, |_: &Request| "row");
    let service = layer.layer(Probe::default());
    assert!(ask(&service, 15).await.is_ok());
    assert_eq!(
        by(ask(&service, 15).await),
        "callers",
        "16 of a share of 10"
    );
    assert!(ask(&service, 16).await.is_ok(), "another caller");
    let closed = RateLimitLayer::all_of(
        TokenBuckets::new(self::buckets(&away(), [4; 3])).unwrap(),
        KEYS,
    );
    let refusal = ask(&closed.layer(Probe::default()), 1).await.unwrap_err();
    assert_eq!(refusal.kind(), RefusalKind::StoreUnavailable);
}
