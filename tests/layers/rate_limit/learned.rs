//! What a layer learns from the responses of its upstream holds for the fleet.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};
use tower_distributed::response::UpstreamLimits;
use tower_distributed::token_bucket::Decision;
use tower_distributed::{Quota, RateLimitLayer, TokenBucket, TokenBuckets};

use crate::stores::{HOUR, SOON, Stores, at_most, on_each_store};
use support::eventually;

on_each_store!(
    a_policy_is_the_quota_of_its_key_everywhere,
    what_remains_lowers_the_level_and_never_raises_it,
    a_refusal_stops_the_fleet,
    the_first_of_several_limits_is_learned,
    a_limit_below_the_cost_of_a_request_does_not_lock_it_out,
);

/// The header fields that the upstream sends back.
type Fields = &'static [(&'static str, &'static str)];
type Client = BoxCloneSyncService<Request<Fields>, Response<()>, BoxError>;
type Layer = RateLimitLayer<Request<Fields>, Response<()>>;

const TWENTY: Fields = &[("ratelimit-policy", "\"default\";q=20;w=1")];
const FAST: Fields = &[("ratelimit-policy", "\"default\";q=1000;w=1")];
const THOUSAND: Fields = &[("ratelimit-policy", "\"default\";q=1000;w=1000")];
const THREE_LEFT: Fields =
    &[("ratelimit-policy", "\"default\";q=1000;w=1000"), ("ratelimit", "\"default\";r=3")];
const NINE_HUNDRED_LEFT: Fields =
    &[("ratelimit-policy", "\"default\";q=1000;w=1000"), ("ratelimit", "\"default\";r=900")];
const REFUSED: Fields = &[("ratelimit-policy", "\"default\";q=20;w=1"), ("retry-after", "30")];

fn path(request: &Request<Fields>) -> String {
    request.uri().path().to_owned()
}

fn client(layer: Layer, limits: UpstreamLimits) -> Client {
    let layer = layer.max_wait(SOON).learn(limits).on_response(|decision, response: &mut Response<()>| {
        response.extensions_mut().insert(decision.clone());
    });
    let upstream = service_fn(async |request: Request<Fields>| {
        let status = *request.extensions().get::<StatusCode>().unwrap_or(&StatusCode::OK);
        let response =
            request.into_body().iter().fold(Response::builder().status(status), |response, (name, value)| {
                response.header(*name, *value)
            });
        Ok::<_, Infallible>(response.body(()).unwrap())
    });
    BoxCloneSyncService::new(layer.layer(upstream))
}

/// A client of a process of its own, which may send many requests until something is learned.
fn process(stores: &Stores, limits: UpstreamLimits) -> Client {
    client(RateLimitLayer::new(at_most(100_000, &stores.open()), path), limits)
}

fn half() -> UpstreamLimits {
    UpstreamLimits::default().burst_percent(50).unwrap()
}

fn request(path: &str, fields: Fields) -> Request<Fields> {
    Request::get(path).body(fields).unwrap()
}

/// The decision on a request that the upstream answers with these fields.
async fn ask(client: &Client, path: &str, fields: Fields) -> Decision {
    let response = client.clone().oneshot(request(path, fields)).await.unwrap();
    response.extensions().get::<Decision>().unwrap().clone()
}

/// What is left under the quota of [`THOUSAND`] with half of it as the burst.
async fn left(bucket: &TokenBucket) -> u32 {
    bucket.with_quotas(&"47/100s, burst 501".parse().unwrap()).peek("/a").await.unwrap().remaining()
}

async fn limit(client: &Client, path: &str) -> u32 {
    ask(client, path, &[]).await.state.tightest().limit
}

async fn learns(client: &Client, expected: u32) {
    eventually("the quota to be learned", SOON, async || limit(client, "/a").await == expected).await;
}

async fn a_policy_is_the_quota_of_its_key_everywhere(stores: Stores) {
    let limits = UpstreamLimits::default();
    let [here, there, early] = [(); 3].map(|()| process(&stores, limits));
    assert_eq!(limit(&early, "/a").await, 100_000, "the configured quota");
    assert_eq!(ask(&here, "/a", TWENTY).await.state.tightest().limit, 100_000);
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
    let limit = async || ask(&client, "/a", NINE_HUNDRED_LEFT).await.state.tightest().limit;
    assert_eq!(limit().await, 100_000);
    // A change is sent once in a second.
    eventually("the other quota to be learned", SOON, async || limit().await == 11).await;
}

async fn what_remains_lowers_the_level_and_never_raises_it(stores: Stores) {
    let bucket = at_most(100, &stores.open());
    let client = client(RateLimitLayer::new(bucket.clone(), path), half());
    ask(&client, "/a", THOUSAND).await;
    learns(&client, 501).await;
    assert!(ask(&client, "/a", &[]).await.remaining() > 300);
    // While one is learned, other responses correct nothing. Requests alone would use up the level later.
    let mut asked = 0;
    eventually("the level to be lowered", SOON, async || {
        asked += 1;
        ask(&client, "/a", THREE_LEFT).await;
        left(&bucket).await <= 3
    })
    .await;
    assert!(asked < 200, "{asked} requests have used it up");
    for _ in 0..2 {
        assert!(ask(&client, "/a", NINE_HUNDRED_LEFT).await.remaining() <= 3);
    }
    bucket.block_for("marker", SOON).await.unwrap();
    assert!(left(&bucket).await <= 3, "what was told would have left before this");
}

async fn a_refusal_stops_the_fleet(stores: Stores) {
    let [here, there] = [(); 2].map(|()| at_most(100, &stores.open()));
    let mut refused = request("/a", REFUSED);
    refused.extensions_mut().insert(StatusCode::TOO_MANY_REQUESTS);
    client(RateLimitLayer::new(here, path), half()).oneshot(refused).await.unwrap();
    eventually("the block", SOON, async || !there.peek("/a").await.unwrap().blocked_for().is_zero()).await;
    assert!(there.peek("/b").await.unwrap().blocked_for().is_zero());
}

async fn the_first_of_several_limits_is_learned(stores: Stores) {
    let store = stores.open();
    let bucket = |name| TokenBucket::new(&store, name, Quota::new(1, HOUR).burst(100)).unwrap();
    let limits = TokenBuckets::new([bucket("keys"), bucket("all")]).unwrap();
    let layer = RateLimitLayer::all_of(limits, (path, |_: &Request<Fields>| "all"));
    let client = client(layer, UpstreamLimits::default());
    let limits = async |path| {
        let decision = ask(&client, path, &[]).await;
        decision.state.balances().map(|balance| balance.limit).collect::<Vec<_>>()
    };
    assert_eq!(limits("/a").await, [100, 100]);
    ask(&client, "/a", TWENTY).await;
    eventually("the quota to be learned", SOON, async || limits("/a").await == [1, 100]).await;
    assert_eq!(limits("/b").await, [100, 100]);
}
