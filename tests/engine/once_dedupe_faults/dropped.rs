//! Every future may be dropped at any time: what was claimed is given back, and what was to be confirmed is confirmed.

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use tokio_test::task;
use tower_distributed::Store;
use tower_distributed::dedupe::{Claim, Claimed, Dedupe};

use super::{claims, left, take};
use crate::scene::{LONG, SOON, open};
use support::eventually;
use support::redis_server::RedisServer;

/// What whoever holds the item does once the call waits.
#[derive(Clone, Copy, PartialEq)]
enum Holder {
    None,
    Drops,
    Confirms,
}

/// A call for an item, or with a claim on it.
type Call = for<'a> fn(&'a Dedupe, &'a str) -> LocalBoxFuture<'a, ()>;
type CallWith = fn(Claim) -> LocalBoxFuture<'static, ()>;

/// What is called, who holds the item, and whether it is a duplicate in the end.
const CALLS: [(&str, Call, Holder, bool); 6] = [
    ("try_claim", |dedupe, item| dedupe.try_claim(item).map(drop).boxed_local(), Holder::None, false),
    ("refused", |dedupe, item| dedupe.try_claim(item).map(drop).boxed_local(), Holder::Drops, false),
    ("claim", |dedupe, item| dedupe.claim(item, LONG).map(drop).boxed_local(), Holder::None, false),
    ("handed on", |dedupe, item| dedupe.claim(item, LONG).map(drop).boxed_local(), Holder::Drops, false),
    ("meanwhile", |dedupe, item| dedupe.claim(item, LONG).map(drop).boxed_local(), Holder::Confirms, true),
    ("anyway", |dedupe, item| dedupe.claim_anyway(item).map(drop).boxed_local(), Holder::None, false),
];

/// The same for a claim, once the call was polled.
const ENDS: [(&str, CallWith, bool); 2] = [
    ("confirm", |claim| claim.confirm().map(drop).boxed_local(), true),
    ("release", |claim| claim.release().map(drop).boxed_local(), false),
];

#[tokio::test]
async fn a_call_may_be_dropped_at_each_poll_in_memory() {
    each_call(&claims(&Store::in_memory(), "dropped", LONG), None).await;
}

#[tokio::test]
async fn a_call_may_be_dropped_at_each_poll_on_redis() {
    let server = RedisServer::start().await;
    each_call(&claims(&open(&server.url()), "dropped", LONG), Some(&server)).await;
}

async fn each_call(dedupe: &Dedupe, server: Option<&RedisServer>) {
    // A call waits; in process that is so once it was polled.
    let waits = || server.is_none_or(|server| left(server).iter().any(|key| key.ends_with(":waiters")));
    for woken in [false, true] {
        for (what, call, holder, is_known) in CALLS {
            for polls in 0.. {
                let item = &*format!("{what} {woken} {polls}");
                let mut held = None;
                if holder != Holder::None {
                    held = Some(take(dedupe, item).await);
                }
                let mut settle = async || match held.take() {
                    Some(held) if holder == Holder::Confirms => assert!(held.confirm().await.unwrap()),
                    held => drop(held),
                };
                let is_done = drop_after(polls, woken, call(dedupe, item), async || {
                    if waits() {
                        settle().await;
                    }
                })
                .await;
                settle().await;
                ends(dedupe, server, item, is_known).await;
                if is_done {
                    break;
                }
            }
        }
        for (what, call, is_known) in ENDS {
            for polls in 0.. {
                let item = &*format!("{what} {woken} {polls}");
                let call = call(take(dedupe, item).await);
                let is_done = drop_after(polls, woken, call, async || ()).await;
                ends(dedupe, server, item, is_known && polls > 0).await;
                if is_done {
                    break;
                }
            }
        }
    }
}

/// Polls a call so often, each time once it is woken, and drops it, once it is woken again or before. Whether it was done.
async fn drop_after(
    polls: usize,
    woken: bool,
    call: LocalBoxFuture<'_, ()>,
    mut meanwhile: impl AsyncFnMut(),
) -> bool {
    let mut call = task::spawn(call);
    for poll in 0..polls {
        if call.poll().is_ready() {
            return true;
        }
        if poll + 1 < polls || woken {
            eventually("it to be woken", SOON, async || {
                if !call.is_woken() {
                    meanwhile().await;
                }
                call.is_woken()
            })
            .await;
        }
    }
    false
}

/// The item becomes known, or free, and nothing is left.
async fn ends(dedupe: &Dedupe, server: Option<&RedisServer>, item: &str, is_known: bool) {
    eventually(&format!("{item:?} to be known ({is_known}), or free"), SOON, async || {
        match dedupe.try_claim(item).await {
            Ok(Claimed::New(claim)) => {
                assert!(claim.release().await.unwrap());
                !is_known
            }
            Ok(Claimed::Duplicate) => {
                assert!(is_known, "{item}");
                true
            }
            Err(error) => {
                assert!(error.is_refused(), "{error}");
                false
            }
        }
    })
    .await;
    if let Some(server) = server {
        eventually("nothing to be left", SOON, async || left(server).is_empty()).await;
    }
}
