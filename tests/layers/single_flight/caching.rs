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

on_each_store!(storing, variants, what_is_served);

type Fields<'a> = &'a [(&'a str, &'a str)];

fn headers(fields: Fields<'_>) -> HeaderMap {
    let field = |(name, value): &(&str, &str)| {
        (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
    };
    let mut headers = HeaderMap::new();
    for (name, value) in fields.iter().map(field) {
        headers.append(name, value);
    }
    headers
}

/// A cache before an origin that numbers its responses.
struct Cache<'a> {
    stores: &'a Stores,
    cases: AtomicU64,
}

/// What was received.
type Received = (HeaderMap, String);

impl<'a> Cache<'a> {
    fn new(stores: &'a Stores) -> Self {
        Self { stores, cases: AtomicU64::new(0) }
    }

    /// The answers to requests that come one after the other.
    async fn ask(&self, status: u16, fields: Fields<'_>, requests: &[Fields<'_>]) -> Vec<Received> {
        let (numbers, fields) = (Arc::new(AtomicU64::new(0)), headers(fields));
        let origin = service_fn(move |_: Request<Body>| {
            let number = numbers.fetch_add(1, Ordering::SeqCst);
            let mut response = Response::new(Body::from(number.to_string()));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            *response.headers_mut() = fields.clone();
            async { Ok::<_, Infallible>(response) }
        });
        // Requests with fields that are not known are private.
        let key = shared_get().ignore_field("foo").unwrap().ignore_field("bar").unwrap();
        let service = ServiceBuilder::new().layer(single_flight(pages(self.stores), key)).service(origin);
        let path = format!("/{}", self.cases.fetch_add(1, Ordering::SeqCst));
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

    /// Whether the response to the first of two like requests answers the second.
    async fn reuses(&self, status: u16, fields: Fields<'_>) -> bool {
        self.ask(status, fields, &[&[], &[]]).await[1].1 == "0"
    }
}

fn date(seconds: i64) -> String {
    let by = Duration::from_secs(seconds.unsigned_abs());
    let now = SystemTime::now();
    httpdate::fmt_http_date(if seconds < 0 { now - by } else { now + by })
}

async fn storing(stores: Stores) {
    let cache = Cache::new(&stores);
    let (past, future, now) = (date(-7200), date(7200), date(0));
    let control = "cache-control";
    let cases: &[(u16, Fields<'_>, bool)] = &[
        (200, &[(control, "max-age=3600"), ("age", "1800")], true),
        (200, &[(control, "max-age=3600"), ("expires", &past)], true),
        (200, &[(control, "max-age=0, s-maxage=3600")], true),
        (200, &[("expires", &future), ("date", &now)], true),
        (200, &[(control, "max-age=0"), ("expires", &future)], false),
        (200, &[(control, "max-age=3600"), ("age", "7200")], false),
        (200, &[("expires", &past), ("date", &now)], false),
        (200, &[(control, "must-revalidate, max-age=3600")], true),
        (410, &[(control, "max-age=3600")], true),
        (503, &[(control, "max-age=3600")], false),
        (200, &[(control, "max-age=3600"), (control, "no-store")], false),
        (200, &[(control, "private=\"set-cookie\", max-age=3600")], false),
        (200, &[(control, "no-cache, max-age=3600")], false),
        (200, &[(control, "max-age=3600"), ("set-cookie", "a=b")], false),
        (200, &[(control, "max-age=3600"), ("content-length", "100")], false),
    ];
    for (status, fields, is_reused) in cases {
        assert_eq!(cache.reuses(*status, fields).await, *is_reused, "{status} {fields:?}");
    }
    let fresh: Fields<'_> = &[("cache-control", "max-age=3600, public")];
    let authorized: Fields<'_> = &[("authorization", "Basic x")];
    for requests in [[authorized, authorized], [&[], authorized], [authorized, &[]]] {
        assert_eq!(cache.ask(200, fresh, &requests).await[1].1, "1", "{requests:?}");
    }
    for field in [("cache-control", "no-store"), ("range", "x"), ("if-none-match", "x")] {
        assert_eq!(cache.ask(200, fresh, &[&[field], &[]]).await[1].1, "1", "{field:?}");
    }
}

async fn variants(stores: Stores) {
    let cache = Cache::new(&stores);
    let vary = async |vary, one, other| {
        cache.ask(200, &[("cache-control", "max-age=3600"), ("vary", vary)], &[one, other]).await[1].1 == "0"
    };
    let (one, two): (Fields<'_>, Fields<'_>) = (&[("foo", "1")], &[("foo", "2")]);
    assert!(vary("Foo", one, one).await && vary("foo", &[], &[]).await && vary("Bar", one, two).await);
    assert!(vary("Foo, Bar", &[("foo", "1"), ("bar", "2")], &[("bar", "2"), ("foo", "1")]).await);
    assert!(!vary("Foo", one, two).await && !vary("Foo", one, &[]).await && !vary("Foo", &[], one).await);
    assert!(
        !vary("Bar, Foo", one, two).await && !vary("*", one, one).await && !vary("*, Foo", one, one).await
    );
    // Each variant is kept beside the others.
    let fields: Fields<'_> = &[("cache-control", "max-age=3600"), ("vary", "foo")];
    let received = cache.ask(200, fields, &[one, two, one, two]).await;
    assert_eq!(received.iter().map(|(_, body)| &**body).collect::<Vec<_>>(), ["0", "1", "0", "1"]);
}

async fn what_is_served(stores: Stores) {
    let cache = Cache::new(&stores);
    let fields: Fields<'_> = &[
        ("cache-control", "max-age=3600"),
        ("age", "30"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-authenticate", "Basic"),
        ("x-end", "1"),
    ];
    // With credentials for a proxy it is not stored at all.
    assert_eq!(cache.ask(200, fields, &[&[], &[]]).await[1].1, "1");
    let fields: Vec<_> = fields.iter().copied().filter(|(name, _)| *name != "proxy-authenticate").collect();
    let received = cache.ask(200, &fields, &[&[], &[]]).await;
    let (served, body) = &received[1];
    assert_eq!((&**body, &served["x-end"]), ("0", &HeaderValue::from_static("1")));
    for gone in ["connection", "x-hop", "keep-alive"] {
        assert!(!served.contains_key(gone), "{gone}");
    }
    let age: u64 = served["age"].to_str().unwrap().parse().unwrap();
    assert!((30..60).contains(&age), "{age}");
}
