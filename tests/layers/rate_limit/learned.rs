//! What a layer learns from the responses of its upstream holds for the fleet.

use std::convert::Infallible;

use http::{Request, Response};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};
use tower_distributed::response::UpstreamLimits;
use tower_distributed::token_bucket::Decision;
use tower_distributed::{Quota, RateLimitLayer, TokenBucket, TokenBuckets};

use crate::stores::{HOUR, SOON, Stores, at_most, on_each_store};
use support::eventually;

on_each_store!(
    a_policy_is_the_quota_of_its_key_everywhere,
    the_first_of_several_limits_is_learned,
    a_limit_below_the_cost_of_a_request_does_not_lock_it_out,
);

/// The header fields that the upstream sends back.
type Fields = &'static [(&'static str, &'static str)];
type Client = BoxCloneSyncService<Request<Fields>, Response<()>, BoxError>;
type Layer = RateLimitLayer<Request<Fields>, Response<()>>;

const TWENTY: Fields = &[("ratelimit-policy", "\"default\";q=20;w=1")];
const FAST: Fields = &[("ratelimit-policy", "\"default\";q=1000;w=1")];
const NINE_HUNDRED_LEFT: Fields = &[
    ("ratelimit-policy", "\"default\";q=1000;w=1000"),
    ("ratelimit", "\"default\";r=900"),
];

fn path(request: &Request<Fields>) -> String {
    request.uri().path().to_owned()
}

fn client(layer: Layer, limits: UpstreamLimits) -> Client {
    let layer =
        layer
            .max_wait(SOON)
            .learn(limits)
            .on_response(|decision, response: &mut Response<()>| {
                response.extensions_mut().insert(decision.clone());
            });
    let upstream = service_fn(async |request: Request<Fields>| {
        let fields = request.into_body().iter();
        let response = fields.fold(Response::builder(), |response, (name, value)| {
            response.header(*name, *value)
        });
        Ok::<_, Infallible>(response.body(()).unwrap())
    });
    BoxCloneSyncService::new(layer.layer(upstream))
}

/// A client of a process of its own, which may send many requests until something is learned.
fn process(stores: &Stores, limits: UpstreamLimits) -> Client {
    client(
        RateLimitLayer::new(at_most(100_000, &stores.open()), path),
        limits,
    )
}

/// The decision on a request that the upstream answers with these fields.
async fn ask(client: &Client, path: &str, fields: Fields) -> Decision {
    let response = client
        .clone()
        .oneshot(Request::get(path).body(fields).unwrap())
        .await
        .unwrap();
    response.extensions().get::<Decision>().unwrap().clone()
}

async fn limit(client: &Client, path: &str) -> u32 {
    ask(client, path, &[]).await.state.tightest().limit
}

async fn learns(client: &Client, expected: u32) {
    eventually("the quota to be learned", SOON, async || {
        limit(client, "/a").await == expected
    })
    .await;
}

async fn a_policy_is_the_quota_of_its_key_everywhere(stores: Stores) {
    let limits = UpstreamLimits::default();
    let [here, there, early] = [(); 3].map(|()| process(&stores, limits));
    assert_eq!(limit(&early, "/a").await, 100_000, "the configured quota");
    assert_eq!(
        ask(&here, "/a", TWENTY).await.state.tightest().limit,
        100_000
    );
    learns(&here, 1).await;
    // It holds here before the store knows it.
    learns(&there, 1).await;
    assert_eq!(limit(&there, "/b").await, 100_000);
    // Without a response that tells it again.
    learns(&early, 1).await;
    // It is news for all.
    ask(&there, "/a", FAST).await;
    for client in [&there, &here, &early] {
        learns(client, 11).await;
    }
}

async fn a_limit_below_the_cost_of_a_request_does_not_lock_it_out(stores: Stores) {
    let layer = RateLimitLayer::new(at_most(100_000, &stores.open()), path)
        .cost(|request: &Request<Fields>| request.body().len().max(1) as u32);
    let client = client(layer, UpstreamLimits::default());
    ask(&client, "/a", TWENTY).await;
    learns(&client, 1).await;
    // Under the learned quota, two tokens could never be had at once, and no response would tell another one.
    assert_eq!(NINE_HUNDRED_LEFT.len(), 2);
    let limit = async || {
        ask(&client, "/a", NINE_HUNDRED_LEFT)
            .await
            .state
            .tightest()
            .limit
    };
    assert_eq!(limit().await, 100_000);
    // A change is sent once in a second.
    eventually("the other quota to be learned", SOON, async || {
        limit().await == 11
    })
    .await;
}

async fn the_first_of_several_limits_is_learned(stores: Stores) {
    let store = stores.open();
    let bucket = |name| TokenBucket::new(&store, name, Quota::new(1, HOUR).burst(100)).unwrap();
    let limits = TokenBuckets::new([bucket("keys"), bucket("all")]).unwrap();
    let layer = RateLimitLayer::all_of(limits, (path, |_: &Request<Fields>| "all"));
    let client = client(layer, UpstreamLimits::default());
    let limits = async |path| {
        let decision = ask(&client, path, &[]).await;
        decision
            .state
            .balances()
            .map(|balance| balance.limit)
            .collect::<Vec<_>>()
    };
    assert_eq!(limits("/a").await, [100, 100]);
    ask(&client, "/a", TWENTY).await;
    eventually("the quota to be learned", SOON, async || {
        limits("/a").await == [1, 100]
    })
    .await;
    assert_eq!(limits("/b").await, [100, 100]);
}
