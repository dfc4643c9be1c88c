use std::convert::Infallible;
use std::fmt::Debug;
use std::future::{Ready, ready};
use std::time::Duration;

use http::{Request, Response};
use tower::util::ServiceFn;
use tower::{Layer, Service, ServiceExt, service_fn};

use super::*;
use crate::bucket::quota::Quota;
use crate::bucket::tests::fixtures::START;
use crate::http::refuse::Refuse;
use crate::http::web;
use crate::layers::rate_limit::RateLimitLayer;
use crate::layers::refusal::Refusal;
use crate::store::Store;
use crate::store::memory::manual_clock::ManualClock;
use crate::token_bucket::TokenBucket;

type Layered = RateLimitLayer<Request<()>, Response<String>, Refuse>;
type Handle = fn(Request<()>) -> Ready<Result<Response<String>, Infallible>>;

fn bucket(quota: Quota) -> TokenBucket {
    TokenBucket::new(&Store::in_memory(), "fields", quota).unwrap()
}

fn limit(quota: Quota) -> Layered {
    web::rate_limit(bucket(quota), |_: &Request<()>| "ann")
}

async fn ask<L>(layer: &L) -> Response<String>
where
    L: Layer<
            ServiceFn<Handle>,
            Service: Service<Request<()>, Response = Response<String>, Error: Debug>,
        >,
{
    let handle: Handle = |_| ready(Ok(Response::new(String::new())));
    layer
        .layer(service_fn(handle))
        .oneshot(Request::new(()))
        .await
        .unwrap()
}

fn text(response: &Response<String>, name: impl http::header::AsHeaderName) -> Option<String> {
    Some(response.headers().get(name)?.to_str().unwrap().to_owned())
}

/// The fields of the first two responses.
async fn fields(layer: Layered) -> [(u16, Option<String>, Option<String>); 2] {
    let told = async || {
        let response = ask(&layer).await;
        (
            response.status().as_u16(),
            text(&response, POLICY),
            text(&response, RATE_LIMIT),
        )
    };
    [told().await, told().await]
}

#[tokio::test]
async fn they_are_as_set_in_admitted_and_refused_responses() {
    let (hourly, costly) = (
        || limit(Quota::per_hour(1)),
        || limit(Quota::per_hour(7)).cost(|_: &Request<()>| 5),
    );
    let bytes = RateLimitFields::default().unit("content-bytes").unwrap();
    let by_key = RateLimitFields::default().partition_key(true);
    for (layer, policy) in [
        (hourly(), "\"default\";q=1;w=3600"),
        // The unit is written if it is not requests.
        (costly(), "\"default\";q=7;w=3600;qu=\"tokens\""),
        (
            costly().fields(bytes),
            "\"default\";q=7;w=3600;qu=\"content-bytes\"",
        ),
        // The first 12 bytes of SHA-256("ann") in base64.
        (
            hourly().fields(by_key),
            "\"default\";q=1;w=3600;pk=:SZFeDX1LQC4wF9AQ:",
        ),
    ] {
        for (response, status) in fields(layer).await.into_iter().zip([200, 429]) {
            assert_eq!((response.0, response.1.as_deref()), (status, Some(policy)));
            let state = response.2.unwrap();
            assert!(
                state.starts_with("\"default\";r=") && !state.contains("qu"),
                "{state}"
            );
        }
    }
    let [admitted, _] = fields(hourly()).await;
    assert!(admitted.2.unwrap().starts_with("\"default\";r=0;t="));
    for (_, policy, state) in fields(hourly().fields(RateLimitFields::none())).await {
        assert_eq!((policy, state), (None, None));
    }
}

/// They belong to the layer: whoever writes the refusals takes nothing from the responses to admitted requests.
#[tokio::test]
async fn responses_keep_them_whoever_writes_the_refusals() {
    let layer =
        limit(Quota::per_hour(1)).reject_with(|_: Refusal| Response::new("later".to_owned()));
    for body in ["", "later"] {
        let response = ask(&layer).await;
        assert_eq!(response.body(), body);
        assert_eq!(response.headers()[&POLICY], "\"default\";q=1;w=3600");
        assert!(response.headers().contains_key(&RATE_LIMIT));
    }
}

/// By a hook, and once where a layer writes them as well.
#[tokio::test]
async fn a_hook_writes_them_in_whole_and_once() {
    let fields = RateLimitFields::default().partition_key(true);
    let layer = RateLimitLayer::new(bucket(Quota::per_hour(9)), |_: &Request<()>| "ann")
        .cost(|_: &Request<()>| 2);
    let closure = layer
        .on_response(move |decision, response: &mut Response<String>| {
            fields.write(decision, true, response.headers_mut());
        })
        .reject_with(|_| Response::new(String::new()));
    let both = closure.clone().fields(fields);
    for response in [ask(&closure).await, ask(&both).await] {
        let policies: Vec<_> = response.headers().get_all(&POLICY).iter().collect();
        assert_eq!(
            policies,
            [r#""default";q=9;w=3600;qu="tokens";pk=:SZFeDX1LQC4wF9AQ:"#]
        );
        assert_eq!(response.headers().get_all(&RATE_LIMIT).iter().count(), 1);
    }
}

/// The windows of months differ in length, so the policy does as well.
#[tokio::test]
async fn calendar_quotas_say_when_the_next_window_starts() {
    const DAY: i64 = 86_400_000_000;
    // The end of 2026-01-31.
    let end = 20_485 * DAY;
    let clock = ManualClock::at(end - 10_000_000);
    let bucket = TokenBucket::new(&clock.store(), "fields", Quota::per_calendar_month(2)).unwrap();
    let layer: Layered = web::rate_limit(bucket, |_: &Request<()>| "ann");
    // The remaining tokens, the days of the window, the seconds until the next, and the status.
    for (now, left, days, until, status) in [
        (end - 10_000_000, 1, 31, 10, 200),
        (end - 10_000_000, 0, 31, 10, 200),
        (end - 10_000_000, 0, 31, 10, 429),
        (end, 1, 28, 28 * 86_400, 200),
        (end + 28 * DAY, 1, 31, 31 * 86_400, 200),
    ] {
        clock.set(now);
        let response = ask(&layer).await;
        assert_eq!(response.status().as_u16(), status);
        let policy = format!("\"default\";q=2;w={}", days * 86_400);
        let state = format!("\"default\";r={left};t={until}");
        assert_eq!(response.headers()[&POLICY], policy);
        assert_eq!(response.headers()[&RATE_LIMIT], state);
        assert_eq!(
            text(&response, "retry-after"),
            (status == 429).then(|| until.to_string())
        );
    }
}

/// As clients read them: lists of strings with parameters.
#[tokio::test]
async fn they_are_lists_of_rfc_9651() {
    let quotas = [
        Quota::per_hour(9).named("a b,c;d=1"),
        Quota::non_refilling(3).named("it's %\u{7e}"),
    ];
    let bucket = TokenBucket::new(&Store::in_memory(), "fields", quotas).unwrap();
    let fields = RateLimitFields::default()
        .partition_key(true)
        .unit("content-bytes")
        .unwrap();
    let layer = web::rate_limit(bucket, |_: &Request<()>| "ann").fields(fields);
    for (_, policy, state) in self::fields(layer).await {
        let [policy, state] =
            [policy, state].map(|field| sfv::Parser::new(&field.unwrap()).parse().unwrap());
        let names = |list: &sfv::List| -> Vec<String> {
            let item = |entry: &sfv::ListEntry| match entry {
                sfv::ListEntry::Item(item) => item.bare_item.as_string().unwrap().to_string(),
                sfv::ListEntry::InnerList(_) => panic!("a list within the list"),
            };
            list.iter().map(item).collect()
        };
        assert_eq!(names(&policy), ["a b,c;d=1", "it's %~"]);
        assert_eq!(names(&policy), names(&state));
        let [sfv::ListEntry::Item(first), _] = &policy[..] else {
            panic!("{policy:?}")
        };
        let of = |key: &str| &first.params[key];
        assert_eq!(
            (of("q").as_integer(), of("w").as_integer()),
            (Some(9.into()), Some(3600.into()))
        );
        assert_eq!(
            of("qu").as_string().map(|unit| unit.as_str()),
            Some("content-bytes")
        );
        assert_eq!(of("pk").as_byte_sequence().map(<[u8]>::len), Some(12));
    }
}

/// When a month ends does not depend on which second refuses.
#[tokio::test]
async fn only_the_quota_that_refused_is_no_later_than_retry_after() {
    let quotas = [
        Quota::per_second(2).named("second"),
        Quota::new(1, Duration::from_secs(3600))
            .burst(100)
            .named("month"),
    ];
    let bucket = TokenBucket::new(&ManualClock::at(START).store(), "fields", quotas).unwrap();
    for (cost, told) in [
        (2, "\"second\";r=1;t=1, \"month\";r=99;t=356400"),
        (1, "\"second\";r=0;t=1, \"month\";r=98;t=352800"),
    ] {
        bucket.allow("ann").await.unwrap();
        let decision = bucket.allow_n("ann", cost).await.unwrap();
        assert!(!decision.is_admitted());
        let mut headers = HeaderMap::new();
        let fields = RateLimitFields::default().and_legacy();
        fields.write(&decision, false, &mut headers);
        assert_eq!([&headers[&RATE_LIMIT], &headers[&X_RESET]], [told, "1"]);
    }
}

/// It is unknown when a closed limit is opened.
#[tokio::test]
async fn a_closed_limit_has_a_policy_of_zero_and_no_time() {
    let response = ask(&limit(Quota::per_hour(0))).await;
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()[&POLICY], "\"default\";q=0");
    assert_eq!(response.headers()[&RATE_LIMIT], "\"default\";r=0");
    assert_eq!(text(&response, "retry-after"), None);
    for told in [
        "\"detail\":\"the limit is 0",
        "\"violated-policies\":[\"default\"]",
    ] {
        assert!(response.body().contains(told), "{}", response.body());
    }
}

/// Two layers may have equal quotas.
#[tokio::test]
async fn what_differs_is_written_twice() {
    let mut headers = HeaderMap::new();
    for (used, lines) in [(2, 1), (3, 2), (3, 2), (2, 2)] {
        let decision = bucket(Quota::per_hour(9))
            .allow_n("ann", used)
            .await
            .unwrap();
        RateLimitFields::default().write(&decision, false, &mut headers);
        assert_eq!(
            [&POLICY, &RATE_LIMIT].map(|name| headers.get_all(name).iter().count()),
            [lines; 2]
        );
    }
}

/// Of several layers as well.
#[tokio::test]
async fn the_older_fields_are_of_the_limit_with_the_fewest_tokens() {
    let mut headers = HeaderMap::new();
    let mut write = async |fields: RateLimitFields, quota: Quota, used: u32| {
        let decision = bucket(quota).allow_n("ann", used).await.unwrap();
        fields.write(&decision, false, &mut headers);
        let told = |name| {
            headers
                .get(name)
                .map(|told| told.to_str().unwrap().parse::<u32>().unwrap())
        };
        (
            told(&X_LIMIT),
            told(&X_REMAINING),
            told(&X_RESET).is_some(),
            headers.contains_key(&POLICY),
        )
    };
    assert_eq!(
        write(RateLimitFields::none(), Quota::per_hour(1), 1).await,
        (None, None, false, false)
    );
    let legacy = RateLimitFields::legacy();
    let both = RateLimitFields::default().and_legacy();
    // The limit, the remaining tokens, and whether there is a reset and a policy.
    for (fields, quota, used, [limit, left], [reset, policy]) in [
        (legacy, Quota::per_hour(10), 5, [10, 5], [true, false]),
        (legacy, Quota::per_hour(7), 1, [10, 5], [true, false]),
        (legacy, Quota::per_hour(8), 3, [10, 5], [true, false]),
        (legacy, Quota::per_hour(6), 2, [6, 4], [true, false]),
        (both, Quota::non_refilling(4), 1, [4, 3], [false, true]),
    ] {
        let written = write(fields, quota, used).await;
        assert_eq!(written, (Some(limit), Some(left), reset, policy));
    }
}

#[test]
fn units_are_checked() {
    for unit in ["", "a\"b", "a\\b", "a\nb", "ä"] {
        let error = RateLimitFields::default().unit(unit).unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(&format!("{unit:?}")),
            "{error}"
        );
    }
}
