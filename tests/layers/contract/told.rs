//! How refusals are told, over HTTP and over gRPC: when to come back, where that is known, and nothing of the cause.

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt::Debug;
use std::net::IpAddr;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use tokio::time::Instant;
use tokio_test::task;
use tonic::{Code, Status};
use tower::{BoxError, Layer, Service, ServiceExt as _};
use tower_distributed::extract::{client_ip, header, host, query};
use tower_distributed::response::{Refuse, refuse};
use tower_distributed::{
    ConcurrencyLimitLayer, MutexLayer, Quota, RateLimitLayer, Refusal, RefusalKind, Reject as _,
    RwLock, RwLockLayer, SingleFlightLayer, Store, TokenBucket, WaitGroup, grpc,
};

use crate::families::{self, Other, locks, mutexes, on_each_layer, permits};
use crate::flights::{build, builder, by_name};
use crate::health::retry_delay;
use crate::net::Answer;
use crate::probe::Probe;
use crate::stores::{SOON, Stores, at_most, away};

const BRIEF: Duration = Duration::from_millis(20);

/// What is refused: why, and what clients are told over HTTP (the status, the seconds until the next attempt, and the title)
/// and over gRPC.
pub(crate) type Expected = (RefusalKind, (u16, Option<u64>, &'static str), Code);

pub(crate) const fn reduced(kind: RefusalKind, after: Option<u64>, code: Code) -> Expected {
    (kind, (503, after, "Temporarily reduced capacity"), code)
}

fn exceeded(after: Option<u64>) -> Expected {
    (
        RefusalKind::RateLimited,
        (429, after, "Quota exceeded"),
        Code::ResourceExhausted,
    )
}

fn bad(kind: RefusalKind) -> Expected {
    (kind, (400, None, "Bad Request"), Code::InvalidArgument)
}

/// A refusal, as an error, over HTTP, and over gRPC.
pub(crate) struct Told {
    pub(crate) refusal: Refusal,
    pub(crate) http: Answer,
    grpc: Status,
}

pub(crate) fn told(error: BoxError) -> Told {
    told_by(error, refuse())
}

fn told_by(error: BoxError, refuse: Refuse) -> Told {
    let refusal = *error.downcast::<Refusal>().unwrap();
    let response: Result<Response<String>, Infallible> = refuse.reject(refusal.clone());
    // In other bodies as well.
    let _full: Result<Response<Full<Bytes>>, Infallible> = refuse.reject(refusal.clone());
    let (parts, body) = response.unwrap().into_parts();
    let http = Answer {
        status: parts.status,
        headers: parts.headers,
        body,
    };
    Told {
        grpc: grpc::status(&refusal),
        http,
        refusal,
    }
}

impl Told {
    pub(crate) fn is(&self, (kind, http, code): Expected) {
        let Self {
            refusal,
            http: answer,
            grpc,
        } = self;
        assert_eq!((refusal.kind(), grpc.code()), (kind, code), "{refusal}");
        let (status, after, title) = answer.problem();
        assert_eq!((status, after, &*title), http, "{refusal}");
        assert_eq!(retry_delay(grpc), refusal.retry_after(), "{refusal}");
        // What ends within the second is told as one second, never as none.
        let seconds = refusal
            .retry_after()
            .map(|after| after.as_secs_f64().ceil() as u64);
        assert_eq!(after, seconds, "{refusal}");
        for text in [&*answer.body, grpc.message()] {
            for cause in ["127.0.0.1", "max_keys"] {
                assert!(!text.contains(cause), "the cause is ours alone: {text}");
            }
        }
    }

    /// Has this text, over HTTP as well where that is told at all.
    fn says(&self, text: &str) {
        assert!(self.grpc.message().contains(text), "{}", self.grpc);
        if let Some(detail) = self.http.json()["detail"].as_str() {
            assert!(detail.contains(text), "{detail}");
        }
    }
}

/// What a request is told that a layer refuses.
async fn refused<Req, S>(layer: impl Layer<Probe, Service = S>, request: Req) -> Told
where
    S: Service<Req, Response: Debug, Error = BoxError>,
{
    let probe = Probe::default();
    let error = layer
        .layer(probe.clone())
        .oneshot(request)
        .await
        .unwrap_err();
    assert_eq!(probe.calls(), 0, "{error}");
    told(error)
}

fn everything(_: &u32) -> &'static str {
    "everything"
}

/// Of a bucket whose tokens are used up.
async fn limited(quota: Quota) -> Told {
    let bucket = TokenBucket::new(&Store::in_memory(), "requests", quota).unwrap();
    bucket.allow("everything").await.unwrap();
    refused(RateLimitLayer::new(bucket, everything), 1).await
}

/// Over gRPC as well, clients that are refused at once return at different times.
#[tokio::test]
async fn jitter_is_added_to_the_delay_of_a_status() {
    let refusal = limited(Quota::per_hour(1)).await.refusal;
    let after = refusal.retry_after().unwrap();
    let jitter = Duration::from_secs(60);
    let delay = |_| {
        let refuse = grpc::refuse().jitter(jitter);
        let response: Result<Response<Full<Bytes>>, Infallible> = refuse.reject(refusal.clone());
        let status = Status::from_header_map(response.unwrap().headers()).unwrap();
        retry_delay(&status).unwrap()
    };
    let delays: HashSet<_> = (0..20).map(delay).collect();
    assert!(delays.len() > 1, "{delays:?}");
    let allowed = after..=after + jitter;
    assert!(
        delays.iter().all(|delay| allowed.contains(delay)),
        "{delays:?}, {allowed:?}"
    );
}

/// Of a store in which one more key is one too many.
async fn overloaded() -> Told {
    let store = Store::builder().max_keys(1).in_memory().unwrap();
    at_most(9, &store).allow("a key").await.unwrap();
    refused(RateLimitLayer::new(at_most(9, &store), everything), 1).await
}

/// Of who waits for a flight in another process.
async fn waited() -> Told {
    let stores = Stores::in_memory();
    let probe = Probe::hanging();
    let leads = crate::flights::layer::<Infallible>(&stores).layer(probe.clone());
    let mut leader = task::spawn(leads.oneshot("ann:1".to_owned()));
    probe.runs(1, &mut leader).await;
    let short = build::<Infallible>(
        builder().max_wait(Duration::from_millis(30)),
        &stores.open(),
    );
    refused(SingleFlightLayer::new(short, by_name), "ann:2".to_owned()).await
}

/// A request without any part of a key but its peer.
fn bare() -> Request<()> {
    let mut request = Request::new(());
    request
        .extensions_mut()
        .insert(IpAddr::from([192, 0, 2, 7]));
    request
}

#[tokio::test(start_paused = true)]
async fn refusals_over_http_and_grpc() {
    let bucket = || at_most(2, &Store::in_memory());
    let dear = RateLimitLayer::new(bucket(), everything).cost(|_: &u32| 3);
    let tenant = || header("x-tenant").unwrap();
    let without_tenant = RateLimitLayer::new(bucket(), client_ip().and(tenant()));
    let one_of_two = RateLimitLayer::new(bucket(), (client_ip(), tenant()));
    let missing = bad(RefusalKind::MissingPart);
    let no_tenant = "the header field x-tenant is missing";
    let no_query = RateLimitLayer::new(bucket(), query("a\"b\\c\n"));
    let gone = RateLimitLayer::new(at_most(9, &away()), everything);
    let unavailable = (503, Some(1), "Service Unavailable");
    for (told, expected, text) in [
        (limited(Quota::per_hour(1)).await, exceeded(Some(3600)), ""),
        (
            limited(Quota::new(1, Duration::from_millis(300))).await,
            exceeded(Some(1)),
            "",
        ),
        (limited(Quota::non_refilling(1)).await, exceeded(None), ""),
        (
            refused(dear, 1).await,
            bad(RefusalKind::ExceedsBurst),
            "burst of 2",
        ),
        // The body is JSON, whatever the name of the part.
        (
            refused(no_query, bare()).await,
            missing,
            "the query parameter a\"b\\c\n is missing",
        ),
        (
            refused(RateLimitLayer::new(bucket(), host()), bare()).await,
            missing,
            "the request has no host",
        ),
        (refused(without_tenant, bare()).await, missing, no_tenant),
        (refused(one_of_two, bare()).await, missing, no_tenant),
        (
            waited().await,
            reduced(RefusalKind::WaitedTooLong, None, Code::Unavailable),
            "",
        ),
        (
            overloaded().await,
            reduced(RefusalKind::Overloaded, Some(1), Code::Unavailable),
            "",
        ),
        (
            refused(gone, 1).await,
            (
                RefusalKind::StoreUnavailable,
                unavailable,
                Code::Unavailable,
            ),
            "",
        ),
    ] {
        told.is(expected);
        told.says(text);
    }
}

#[tokio::test(start_paused = true)]
async fn what_others_hold() {
    let stores = Stores::in_memory();
    let (other, store) = (Other::holds(&stores, "ann").await, stores.open());
    let by_name = families::by_name;
    let limit = || ConcurrencyLimitLayer::new(permits(&store, 1), by_name);
    let lock = RwLockLayer::new(locks(&store), by_name);
    let mutex = MutexLayer::new(mutexes(&store), by_name);
    // Nothing is known of how long permits are held.
    let no_permit = reduced(RefusalKind::NoPermit, None, Code::ResourceExhausted);
    let locked = (RefusalKind::Locked, (423, Some(5), "Locked"), Code::Aborted);
    for (told, expected, text) in [
        (
            refused(limit(), "ann").await,
            no_permit,
            "no permit is free",
        ),
        (refused(lock, "ann").await, locked, "the lock is held"),
        (refused(mutex, "ann").await, locked, "the lock is held"),
        // It is a kill switch.
        (
            refused(limit().limit(|_: &&str| Some(0)), "ann").await,
            no_permit,
            "no permit: the limit is 0",
        ),
        (
            refused(limit().weight(|_: &&str| 2), "ann").await,
            bad(RefusalKind::ExceedsLimit),
            "limit of 1",
        ),
    ] {
        told.is(expected);
        told.says(text);
    }
    let error = limit()
        .layer(Probe::default())
        .oneshot("ann")
        .await
        .unwrap_err();
    let per_client = (429, None, "Too Many Requests");
    let told = told_by(error, refuse().permits_per_client());
    told.is((RefusalKind::NoPermit, per_client, Code::ResourceExhausted));

    // Who waits for too long, and who may not wait.
    on_each_layer!(stores, by_name, |layer| {
        let began = Instant::now();
        let told = refused(layer.max_wait(BRIEF), "ann").await;
        told.is(reduced(RefusalKind::WaitedTooLong, None, Code::Unavailable));
        assert!(began.elapsed() >= BRIEF);
    });
    let group = WaitGroup::builder(1)
        .max_waiters(0)
        .build(&store, "permits")
        .unwrap();
    let lock = RwLock::builder()
        .max_waiters(0)
        .build(&store, "locks")
        .unwrap();
    for (told, kind) in [
        (
            refused(
                ConcurrencyLimitLayer::new(group, by_name).max_wait(SOON),
                "ann",
            )
            .await,
            no_permit.0,
        ),
        (
            refused(RwLockLayer::new(lock, by_name).max_wait(SOON), "ann").await,
            locked.0,
        ),
    ] {
        assert!(told.refusal.get_ref().is_queue_full());
        assert_eq!(told.refusal.kind(), kind);
    }
    other.leaves().await;

    let (group, lock) = (permits(&store, 1), locks(&store));
    group.close();
    lock.close();
    for told in [
        refused(ConcurrencyLimitLayer::new(group, by_name), "ann").await,
        refused(RwLockLayer::new(lock, by_name), "ann").await,
    ] {
        told.is(reduced(RefusalKind::Closed, None, Code::Unavailable));
    }
}
