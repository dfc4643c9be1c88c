//! Requests that are refused: why, and what the clients of an HTTP server and of a gRPC server are told.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use http::Response;
use tonic::{Code, Status};
use tower::{BoxError, Layer as _, ServiceExt as _};
use tower_distributed::response::{Refuse, refuse};
use tower_distributed::{
    ConcurrencyLimitLayer, MutexLayer, Refusal, RefusalKind, Reject as _, RwLock, RwLockLayer, WaitGroup,
    grpc,
};

use crate::families::{Other, by_name, locks, mutexes, on_each_layer, permits};
use crate::health::retry_delay;
use crate::net::Answer;
use crate::probe::Probe;
use crate::stores::{SOON, Stores, on_each_store};

on_each_store!(what_others_hold, too_many_that_wait_are_refused_at_once, closed_families_take_no_more);

pub(crate) const REDUCED: &str = "Temporarily reduced capacity";
const BRIEF: Duration = Duration::from_millis(20);

/// A refusal, as an error, over HTTP, and over gRPC.
pub(crate) struct Told {
    pub(crate) refusal: Refusal,
    pub(crate) http: Answer,
    pub(crate) grpc: Status,
}

pub(crate) fn told(error: BoxError) -> Told {
    told_by(error, refuse())
}

fn told_by(error: BoxError, refuse: Refuse) -> Told {
    let refusal = *error.downcast::<Refusal>().unwrap();
    let response: Result<Response<String>, Infallible> = refuse.reject(refusal.clone());
    let (parts, body) = response.unwrap().into_parts();
    let http = Answer { status: parts.status, headers: parts.headers, body };
    Told { grpc: grpc::status(&refusal), http, refusal }
}

impl Told {
    /// Checks why, and what the clients are told: over HTTP the status, the seconds until the next attempt, and the title.
    pub(crate) fn is(&self, kind: RefusalKind, http: (u16, Option<u64>, &str), code: Code) {
        let Self { refusal, http: answer, grpc } = self;
        assert_eq!((refusal.kind(), grpc.code()), (kind, code), "{refusal}");
        let (status, after, title) = answer.problem();
        assert_eq!((status, after, &*title), http, "{refusal}");
        assert_eq!(retry_delay(grpc), after.map(Duration::from_secs), "{refusal}");
        for text in [&*answer.body, grpc.message()] {
            assert!(!text.contains("127.0.0.1"), "the cause is ours alone: {text}");
        }
    }
}

/// What a request of `ann` is told.
macro_rules! refused {
    ($layer:expr) => {
        told($layer.layer(Probe::default()).oneshot("ann").await.unwrap_err())
    };
}

async fn what_others_hold(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), by_name);
    let lock = RwLockLayer::new(locks(&stores.open()), by_name);
    let mutex = MutexLayer::new(mutexes(&stores.open()), by_name);
    let too_heavy = limit.clone().weight(|_: &&str| 2);
    let (no_permit, too_late) = (Code::ResourceExhausted, Code::Unavailable);
    for (told, kind, http, code, text) in [
        // Nothing is known of how long permits are held.
        (refused!(limit), RefusalKind::NoPermit, (503, None, REDUCED), no_permit, "no permit is free"),
        (refused!(lock), RefusalKind::Locked, (423, Some(5), "Locked"), Code::Aborted, "the lock is held"),
        (refused!(mutex), RefusalKind::Locked, (423, Some(5), "Locked"), Code::Aborted, "the lock is held"),
        (
            refused!(limit.clone().max_wait(BRIEF)),
            RefusalKind::WaitedTooLong,
            (503, None, REDUCED),
            too_late,
            "",
        ),
        (refused!(lock.max_wait(BRIEF)), RefusalKind::WaitedTooLong, (503, None, REDUCED), too_late, ""),
        (
            refused!(too_heavy),
            RefusalKind::ExceedsLimit,
            (400, None, "Bad Request"),
            Code::InvalidArgument,
            "limit of 1",
        ),
    ] {
        told.is(kind, http, code);
        assert!(told.grpc.message().contains(text), "{}", told.grpc);
        if kind != RefusalKind::Locked {
            assert_eq!(told.http.json()["detail"], told.grpc.message());
        }
    }
    let closed = refused!(limit.clone().limit(|_: &&str| Some(0)));
    assert_eq!((closed.http.problem().0, closed.grpc.code()), (503, no_permit));
    assert_eq!(closed.http.json()["detail"], "no permit: the limit is 0", "it is a kill switch");
    let error = limit.layer(Probe::default()).oneshot("ann").await.unwrap_err();
    let per_client = told_by(error, refuse().permits_per_client());
    per_client.is(RefusalKind::NoPermit, (429, None, "Too Many Requests"), no_permit);
    other.leaves().await;
}

async fn too_many_that_wait_are_refused_at_once(stores: Stores) {
    let (other, store) = (Other::holds(&stores, "ann").await, stores.open());
    let group = WaitGroup::builder(1).max_waiters(0).build(&store, "permits").unwrap();
    let lock = RwLock::builder().max_waiters(0).build(&store, "locks").unwrap();
    for (told, kind) in [
        (refused!(ConcurrencyLimitLayer::new(group, by_name).max_wait(SOON)), RefusalKind::NoPermit),
        (refused!(RwLockLayer::new(lock, by_name).max_wait(SOON)), RefusalKind::Locked),
    ] {
        assert!(told.refusal.get_ref().is_queue_full());
        assert_eq!(told.refusal.kind(), kind);
    }
    other.leaves().await;
}

async fn closed_families_take_no_more(stores: Stores) {
    let (group, lock) = (permits(&stores.open(), 1), locks(&stores.open()));
    let limit = ConcurrencyLimitLayer::new(group.clone(), by_name);
    let locked = RwLockLayer::new(lock.clone(), by_name);
    assert_eq!(limit.layer(Probe::default()).oneshot("ann").await.unwrap(), "ann");
    assert_eq!(locked.layer(Probe::default()).oneshot("ann").await.unwrap(), "ann");
    group.close();
    lock.close();
    for told in [refused!(limit), refused!(locked)] {
        told.is(RefusalKind::Closed, (503, None, REDUCED), Code::Unavailable);
    }
}

#[tokio::test]
async fn who_waits_too_long_has_waited_as_long_as_is_set() {
    let stores = Stores::in_memory();
    let other = Other::holds(&stores, "ann").await;
    on_each_layer!(stores, by_name, |layer| {
        let began = Instant::now();
        let told = refused!(layer.max_wait(BRIEF));
        assert!(began.elapsed() >= BRIEF);
        assert_eq!(told.refusal.kind(), RefusalKind::WaitedTooLong);
    });
    other.leaves().await;
}
