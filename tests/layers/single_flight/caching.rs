//! What is stored, reused, and for whom: the cases of the public HTTP cache tests (cache-tests.fyi) that concern a shared
//! cache's storing, freshness, `Vary` and authorization.
//!
//! Cases that do not apply, and why:
//!
//! * Heuristic freshness: where a response says nothing, the life of the flight counts, which the operator has chosen.
//! * Validation (`If-None-Match`, 304) and ranges: such requests are answered by themselves, and nothing is stored of them.
//! * Invalidation by POST, PUT and DELETE: there is `forget`.
//! * Statuses of 4xx and 5xx but for 404 and 410: these are allowed to be stored, and are not.
//! * Request directives `no-cache`, `max-age`, `min-fresh`, `only-if-cached`: by choice no client forces a run.
//! * `Authorization` with `public`, `s-maxage` or `must-revalidate`: allowed to be stored, and is not.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::extract::shared_get;
use tower_distributed::web::single_flight;

use crate::flights::pages;
use crate::stores::{Stores, on_each_store};

on_each_store!(storing);

type Fields<'a> = &'a [(&'a str, &'a str)];

fn headers(fields: Fields<'_>) -> HeaderMap {
    let field = |(name, value): &(&str, &str)| {
        (
            HeaderName::try_from(*name).unwrap(),
            HeaderValue::try_from(*value).unwrap(),
        )
    };
    let mut headers = HeaderMap::new();
    for (name, value) in fields.iter().map(field) {
        headers.append(name, value);
    }
    headers
}

/// What a cache before an origin that numbers its responses answers to requests that come one after the other.
async fn ask(
    stores: &Stores,
    status: u16,
    fields: Fields<'_>,
    requests: &[Fields<'_>],
) -> Vec<(HeaderMap, String)> {
    static CASES: AtomicU64 = AtomicU64::new(0);
    let (numbers, fields) = (Arc::new(AtomicU64::new(0)), headers(fields));
    let origin = service_fn(move |_: Request<Body>| {
        let number = numbers.fetch_add(1, Ordering::SeqCst);
        let mut response = Response::new(Body::from(number.to_string()));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        *response.headers_mut() = fields.clone();
        async { Ok::<_, Infallible>(response) }
    });
    // Requests with fields that are not known are private.
    let key = shared_get()
        .ignore_field("foo")
        .unwrap()
        .ignore_field("bar")
        .unwrap();
    let service = ServiceBuilder::new()
        .layer(single_flight(pages(stores), key))
        .service(origin);
    let path = format!("/{}", CASES.fetch_add(1, Ordering::SeqCst));
    let mut received = Vec::new();
    for fields in requests {
        let mut request = Request::get(&path).body(Body::empty()).unwrap();
        *request.headers_mut() = headers(fields);
        let (parts, body) = service.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        received.push((parts.headers, String::from_utf8(body).unwrap()));
    }
    received
}

fn date(seconds: i64) -> String {
    let by = Duration::from_secs(seconds.unsigned_abs());
    let now = SystemTime::now();
    httpdate::fmt_http_date(if seconds < 0 { now - by } else { now + by })
}

/// Which fields and statuses mean what is read from the head alone, in the tests of the crate. Here is one of each kind.
async fn storing(stores: Stores) {
    let control = "cache-control";
    let fresh = (control, "max-age=3600");
    let (past, now, future) = (date(-7200), date(0), date(7200));
    let cases: &[(u16, Fields<'_>, bool)] = &[
        (
            200,
            &[(control, "max-age=0, s-maxage=3600"), ("age", "1800")],
            true,
        ),
        (410, &[("expires", &future), ("date", &now)], true),
        (200, &[("expires", &past), ("date", &now)], false),
        (200, &[fresh, ("age", "7200")], false),
        (503, &[fresh], false),
        (200, &[fresh, (control, "no-store")], false),
        (200, &[fresh, ("set-cookie", "a=b")], false),
        (200, &[fresh, ("proxy-authenticate", "Basic")], false),
        (200, &[fresh, ("content-length", "100")], false),
    ];
    for (status, fields, is_reused) in cases {
        let received = ask(&stores, *status, fields, &[&[], &[]]).await;
        assert_eq!(received[1].1 == "0", *is_reused, "{status} {fields:?}");
    }
    let authorized: Fields<'_> = &[("authorization", "Basic x")];
    let public: Fields<'_> = &[(control, "max-age=3600, public")];
    for requests in [
        [authorized, authorized],
        [&[], authorized],
        [authorized, &[]],
    ] {
        assert_eq!(
            ask(&stores, 200, public, &requests).await[1].1,
            "1",
            "{requests:?}"
        );
    }
    for field in [
        (control, "no-store"),
        ("range", "x"),
        ("if-none-match", "x"),
    ] {
        assert_eq!(
            ask(&stores, 200, public, &[&[field], &[]]).await[1].1,
            "1",
            "{field:?}"
        );
    }
    // Each variant is kept beside the others.
    let (one, two): (Fields<'_>, Fields<'_>) =
        (&[("foo", "1"), ("bar", "1")], &[("bar", "1"), ("foo", "2")]);
    for (vary, expected) in [
        ("Foo", ["0", "1", "0", "1"]),
        ("Bar", ["0"; 4]),
        ("*, Foo", ["0", "1", "2", "3"]),
    ] {
        let received = ask(
            &stores,
            200,
            &[fresh, ("vary", vary)],
            &[one, two, one, two],
        )
        .await;
        assert_eq!(
            received.iter().map(|(_, body)| &**body).collect::<Vec<_>>(),
            expected,
            "{vary}"
        );
    }
    // What is served of a stored one.
    let fields = [
        fresh,
        ("age", "30"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("x-end", "1"),
    ];
    let (served, body) = &ask(&stores, 200, &fields, &[&[], &[]]).await[1];
    assert_eq!(
        (&**body, &served["x-end"]),
        ("0", &HeaderValue::from_static("1"))
    );
    assert!(
        !served.contains_key("connection") && !served.contains_key("x-hop"),
        "{served:?}"
    );
    let age: u64 = served["age"].to_str().unwrap().parse().unwrap();
    assert!(age >= 30, "{age}");
}
