//! Confirmations that the store's own thread cannot run.

use std::time::{Duration, Instant};

use futures_util::FutureExt as _;

use super::{Claimed, Dedupe};
use crate::Store;
use crate::store::background::without_a_thread;
use crate::support::eventually;
use crate::support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(2);

fn claims(store: &Store) -> Dedupe {
    Dedupe::exact(store, "claims")
        .capacity(100)
        .remember_for(Duration::from_secs(60))
        .ttl(TTL)
        .build()
        .unwrap()
}

/// The caller's runtime confirms it.
#[tokio::test]
async fn an_item_is_confirmed_although_no_thread_can_be_started() {
    let server = RedisServer::start().await;
    let [one, other] = [(); 2].map(|()| claims(&Store::redis(&server.url()).unwrap()));
    let Claimed::New(claim) = one.try_claim("item").await.unwrap() else { panic!("it is new") };
    let confirmed = without_a_thread(claim.confirm()).await;
    assert!(confirmed.unwrap());
    assert!(matches!(other.try_claim("item").await.unwrap(), Claimed::Duplicate));
}

/// Without a runtime too, nobody can confirm it. The claim is not released: it expires.
#[test]
fn a_handled_item_is_not_released_although_nobody_can_confirm_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(RedisServer::start());
    let [one, other] = [(); 2].map(|()| claims(&Store::redis(&server.url()).unwrap()));
    let began = Instant::now();
    let claimed = runtime.block_on(one.try_claim("item")).unwrap();
    let Claimed::New(claim) = claimed else { panic!("it is new") };
    let mut confirming = Box::pin(without_a_thread(claim.confirm()));
    assert!((&mut confirming).now_or_never().is_none_or(|confirmed| confirmed.is_err()));
    drop(confirming);
    runtime.block_on(eventually("the claim to expire", 10 * TTL, async || {
        other.try_claim("item").await.is_ok()
    }));
    assert!(began.elapsed() >= TTL, "it was released after {:?}", began.elapsed());
}
