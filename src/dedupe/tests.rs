//! Confirmations whose caller, runtime or thread is not there any more.

use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Runtime};

use super::{Claimed, Dedupe};
use crate::dedupe::claim::Claim;
use crate::store::Store;
use crate::store::background::tests::without_a_thread;
use support::redis_server::RedisServer;
use support::{eventually, eventually_blocking};

/// Longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(60);

fn claims(store: &Store, ttl: Duration) -> Dedupe {
    Dedupe::exact(store, "claims")
        .capacity(100)
        .remember_for(LONG)
        .ttl(ttl)
        .build()
        .unwrap()
}

/// Returns a claim of one process, and the claims of another.
async fn claimed(server: &RedisServer) -> (Claim, Dedupe) {
    let [one, other] = [(); 2].map(|()| claims(&Store::redis(&server.url()).unwrap(), LONG));
    let Claimed::New(claim) = one.try_claim("item").await.unwrap() else {
        panic!("it is new")
    };
    (claim, other)
}

/// A claim of a process on a runtime that runs only in `block_on`.
struct Scene {
    here: Runtime,
    there: Runtime,
    server: RedisServer,
    claim: Claim,
    other: Dedupe,
}

impl Scene {
    fn set() -> Self {
        let there = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = there.block_on(RedisServer::start());
        let here = Builder::new_current_thread().enable_all().build().unwrap();
        let (claim, other) = here.block_on(claimed(&server));
        Self {
            here,
            there,
            server,
            claim,
            other,
        }
    }
}

async fn is_confirmed(other: &Dedupe) {
    let is_known = async || matches!(other.try_claim("item").await, Ok(Claimed::Duplicate));
    eventually("the item to be confirmed", SOON, is_known).await;
}

/// The caller's runtime goes on with it.
#[tokio::test]
async fn an_item_is_confirmed_although_no_thread_can_be_started() {
    let server = RedisServer::start().await;
    let (claim, other) = claimed(&server).await;
    let mut confirming = Box::pin(claim.confirm());
    without_a_thread(async { assert!((&mut confirming).now_or_never().is_none()) }).await;
    without_a_thread(async { drop(confirming) }).await;
    is_confirmed(&other).await;
}

/// The confirmation is sent over another connection than the one where it began.
#[test]
fn an_item_is_confirmed_although_its_runtime_stands_still() {
    let Scene {
        here,
        there,
        server: _server,
        claim,
        other,
    } = Scene::set();
    let (told, hears) = std::sync::mpsc::channel();
    let hear =
        move |confirmed: &Result<bool, crate::error::Error>| told.send(confirmed.clone()).unwrap();
    here.block_on(async { assert!(Box::pin(claim.confirm_and(hear)).now_or_never().is_none()) });
    there.block_on(is_confirmed(&other));
    // The user's function runs where its caller was.
    let mut confirmed = None;
    eventually_blocking("the function to be called", SOON, || {
        here.block_on(tokio::task::yield_now());
        confirmed = hears.try_recv().ok();
        confirmed.is_some()
    });
    assert!(
        confirmed.unwrap().unwrap(),
        "the first attempt is not taken for another holder"
    );
}

/// The retries do not need the runtime on which the first attempt failed.
#[test]
fn a_confirmation_is_retried_although_its_runtime_has_ended() {
    let Scene {
        here,
        there,
        server,
        claim,
        other,
    } = Scene::set();
    server.pause();
    assert!(here.block_on(claim.confirm()).unwrap_err().is_unavailable());
    drop(here);
    server.resume();
    there.block_on(is_confirmed(&other));
}

/// Without a runtime, no process can confirm it either. The claim is not released: it expires.
#[test]
fn a_handled_item_is_not_released_although_nobody_can_confirm_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(RedisServer::start());
    let ttl = Duration::from_secs(2);
    let [one, other] = [(); 2].map(|()| claims(&Store::redis(&server.url()).unwrap(), ttl));
    let began = Instant::now();
    let claimed = runtime.block_on(one.try_claim("item")).unwrap();
    let Claimed::New(claim) = claimed else {
        panic!("it is new")
    };
    let mut confirming = Box::pin(without_a_thread(claim.confirm()));
    assert!(
        (&mut confirming)
            .now_or_never()
            .is_none_or(|confirmed| confirmed.is_err())
    );
    drop(confirming);
    runtime.block_on(eventually("the claim to expire", SOON, async || {
        other.try_claim("item").await.is_ok()
    }));
    assert!(
        began.elapsed() >= ttl,
        "it was released after {:?}",
        began.elapsed()
    );
}
