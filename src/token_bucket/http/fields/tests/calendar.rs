use std::convert::Infallible;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};

use super::super::{POLICY, RATE_LIMIT};
use crate::store::ManualClock;
use crate::{Quota, TokenBucket, web};

/// The windows of months differ in length, so the policy does as well.
#[tokio::test]
async fn calendar_quotas_say_when_the_next_window_starts() {
    const DAY: i64 = 86_400_000_000;
    // The end of 2026-01-31.
    let end = 20_485 * DAY;
    let clock = ManualClock::at(end - 10_000_000);
    let bucket = TokenBucket::new(&clock.store(), "fields", Quota::per_calendar_month(2)).unwrap();
    let limit = web::rate_limit(bucket, |key: &Request<&'static str>| *key.body());
    let ask = async |key| {
        let inner = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
        let response = limit.layer(inner).oneshot(Request::new(key)).await.unwrap();
        let fields = [&POLICY, &RATE_LIMIT].map(|name| response.headers()[name].to_str().unwrap().to_owned());
        let retry_after =
            response.headers().get("retry-after").map(|after| after.to_str().unwrap().to_owned());
        (response.status().as_u16(), fields.join(" "), retry_after)
    };
    let said = |left: u32, window: i64, until: i64| {
        format!("\"default\";q=2;w={} \"default\";r={left};t={until}", window * 86_400)
    };
    assert_eq!(ask("ann").await, (200, said(1, 31, 10), None));
    assert_eq!(ask("ann").await, (200, said(0, 31, 10), None));
    assert_eq!(ask("ann").await, (429, said(0, 31, 10), Some("10".to_owned())));
    clock.set(end);
    assert_eq!(ask("ann").await, (200, said(1, 28, 28 * 86_400), None));
    clock.set(end + 28 * DAY);
    assert_eq!(ask("bob").await, (200, said(1, 31, 31 * 86_400), None));
}
