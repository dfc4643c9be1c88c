//! Budgets of several limits: requests and tokens of a tenant, and tokens of all.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::token_bucket::Estimate::{self, Fixed, Metered};
use tower_distributed::token_bucket::{OnEnd, Usage};
use tower_distributed::{
    BudgetLayer, Quota, Refusal, RefusalKind, Store, TokenBucket, TokenBuckets, web,
};

use crate::stores::{HOUR, SOON, Stores, away, on_each_store, shared_by};
use support::eventually;

on_each_store!(
    what_was_used_is_captured_of_each_limit,
    a_fixed_cost_is_captured_as_it_is,
    refusals_over_http,
);

/// The tenant, what the request is estimated to use, and what it uses, if that is counted.
type Call = (&'static str, u32, Option<u32>);

fn tenant(call: &Call) -> Option<&'static str> {
    (call.0 != "nobody").then_some(call.0)
}

fn estimate(call: &Call) -> [Estimate; 3] {
    [Fixed(1), Metered(call.1), Metered(call.1)]
}

fn buckets(store: &Store) -> [TokenBucket; 3] {
    [("requests", 10), ("tokens", 1000), ("all", 1500)].map(|(name, burst)| {
        TokenBucket::new(store, name, Quota::new(1, HOUR).burst(burst)).unwrap()
    })
}

fn layer(buckets: &[TokenBucket; 3]) -> BudgetLayer<Call> {
    let all = |_: &Call| "-";
    BudgetLayer::all_of(
        TokenBuckets::new(buckets.clone()).unwrap(),
        (tenant, tenant, all),
        estimate,
    )
    .on_hold(|usage: &Usage, call: &mut Call| {
        if let Some(used) = call.2 {
            usage.set(used);
        }
    })
}

async fn ask(layer: &BudgetLayer<Call>, call: Call) -> Result<(), Refusal> {
    let inner = service_fn(async |_: Call| Ok::<_, Infallible>(()));
    layer
        .layer(inner)
        .oneshot(call)
        .await
        .map_err(|error| *error.downcast::<Refusal>().unwrap())
}

/// What is left of each, when nothing is held any more.
async fn come_to(buckets: &[TokenBucket; 3], tenant: &str, left: [u32; 3]) {
    for (bucket, (key, left)) in buckets
        .iter()
        .zip([tenant, tenant, "-"].into_iter().zip(left))
    {
        eventually(
            &format!("{left} left of {}", bucket.name()),
            SOON,
            async || {
                let state = bucket.peek(key).await.unwrap();
                (state.held(), state.remaining()) == (0, left)
            },
        )
        .await;
    }
}

async fn what_was_used_is_captured_of_each_limit(stores: Stores) {
    let buckets = buckets(&stores.open());
    let layer = layer(&buckets);
    ask(&layer, ("acme", 600, Some(431))).await.unwrap();
    come_to(&buckets, "acme", [9, 569, 1069]).await;
    // Without a usage, the estimate.
    ask(&layer, ("globex", 600, None)).await.unwrap();
    come_to(&buckets, "globex", [9, 400, 469]).await;
    // An estimate of 0 holds one token; more than the estimate is charged as well.
    ask(&layer, ("initech", 0, Some(69))).await.unwrap();
    come_to(&buckets, "initech", [9, 931, 400]).await;
    // Limits without a key are not asked.
    ask(&layer, ("nobody", 100, Some(70))).await.unwrap();
    come_to(&buckets, "nobody", [10, 1000, 330]).await;
}

async fn a_fixed_cost_is_captured_as_it_is(stores: Stores) {
    let buckets = buckets(&stores.open()).map(|bucket| bucket.with_on_end(OnEnd::Release));
    ask(&layer(&buckets), ("acme", 600, None)).await.unwrap();
    come_to(&buckets, "acme", [9, 1000, 1500]).await;
    let free = BudgetLayer::all_of(
        TokenBuckets::new(buckets.clone()).unwrap(),
        (tenant, tenant, tenant),
        |_: &Call| [Fixed(0), Fixed(7), Metered(1)],
    );
    ask(&free, ("globex", 1, None)).await.unwrap();
    come_to(&buckets, "globex", [10, 993, 1500]).await;
}

async fn refusals_over_http(stores: Stores) {
    let [requests, tokens, _] = buckets(&stores.open());
    let limits = TokenBuckets::new([requests.clone(), tokens.clone()]).unwrap();
    let key = |_: &Request<()>| "ann";
    let layer = web::token_budgets(limits, (key, key), |_: &Request<()>| {
        [Fixed(1), Metered(600)]
    });
    let handler = service_fn(async |request: Request<()>| {
        request.extensions().get::<Usage>().unwrap().set(500);
        Ok::<_, Infallible>(Response::new("an answer".to_owned()))
    });
    let service = layer.layer(handler);
    let response = service.clone().oneshot(Request::new(())).await.unwrap();
    let fields = response.headers()["ratelimit"].to_str().unwrap().to_owned();
    assert!(
        fields.contains("\"requests\";r=9") && fields.contains("\"tokens\";r=400"),
        "{fields}"
    );
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "an answer"
    );
    eventually("it is captured", SOON, async || {
        tokens.peek("ann").await.unwrap().remaining() == 500
    })
    .await;
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let after: u64 = response.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        99 * HOUR.as_secs() < after && after <= 100 * HOUR.as_secs(),
        "{after}"
    );
    let problem = response.into_body().collect().await.unwrap().to_bytes();
    let problem = std::str::from_utf8(&problem).unwrap();
    assert!(
        problem.contains("\"violated-policies\":[\"tokens\"]"),
        "{problem}"
    );
}

#[tokio::test]
async fn without_a_store_there_is_a_share() {
    let share = layer(&buckets(&away())).on_store_failure(shared_by(2));
    ask(&share, ("acme", 400, None)).await.unwrap();
    assert_eq!(
        ask(&share, ("acme", 400, None)).await.unwrap_err().kind(),
        RefusalKind::RateLimited
    );
    let more = ask(&share, ("acme", 600, None)).await.unwrap_err();
    assert_eq!(
        more.kind(),
        RefusalKind::StoreUnavailable,
        "more than the share"
    );
}
