//! Every future may be dropped at any time: what was claimed is given back, and what was to be confirmed is confirmed.
// What is begun is polled by the test.
#![allow(clippy::async_yields_async)]

use std::future::Future;

use tokio_test::task;
use tower_distributed::Store;
use tower_distributed::dedupe::{Claim, Claimed, Dedupe};

use crate::scene::{LONG, SOON, claims, left, open, take};
use support::eventually;
use support::redis_server::RedisServer;

#[tokio::test]
async fn in_memory() {
    each_call(&claims(&Store::in_memory(), "dropped", LONG), None).await;
}

#[tokio::test]
async fn on_redis() {
    let server = RedisServer::start().await;
    each_call(&claims(&open(&server.url()), "dropped", LONG), Some(&server)).await;
}

/// What the item is to be in the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Free,
    Duplicate,
    /// The former if it was never polled, else the latter.
    DuplicateIfPolled,
}

/// What whoever holds the item does once the call waits.
#[derive(Clone, Copy, PartialEq)]
enum Holder {
    None,
    Drops,
    Confirms,
}

struct Calls<'a> {
    dedupe: &'a Dedupe,
    server: Option<&'a RedisServer>,
    points: usize,
}

async fn each_call(dedupe: &Dedupe, server: Option<&RedisServer>) {
    let own = str::to_owned;
    let mut calls = Calls { dedupe, server, points: 0 };
    calls.at_each_poll("try_claim", Holder::None, End::Free, async |item| dedupe.try_claim(own(item))).await;
    calls.at_each_poll("claim", Holder::None, End::Free, async |item| dedupe.claim(own(item), LONG)).await;
    calls.at_each_poll("refused", Holder::Drops, End::Free, async |item| dedupe.try_claim(own(item))).await;
    calls
        .at_each_poll("handed on", Holder::Drops, End::Free, async |item| dedupe.claim(own(item), LONG))
        .await;
    calls
        .at_each_poll("confirmed meanwhile", Holder::Confirms, End::Duplicate, async |item| {
            dedupe.claim(own(item), LONG)
        })
        .await;
    calls.at_each_poll("anyway", Holder::None, End::Free, async |item| dedupe.claim_anyway(own(item))).await;
    calls
        .at_each_poll("confirm", Holder::None, End::DuplicateIfPolled, async |item| {
            take(dedupe, item).await.confirm()
        })
        .await;
    calls
        .at_each_poll("release", Holder::None, End::Free, async |item| take(dedupe, item).await.release())
        .await;
    println!("dropped at {} points", calls.points);
}

impl Calls<'_> {
    async fn at_each_poll<F: Future>(
        &mut self,
        what: &str,
        holder: Holder,
        end: End,
        begin: impl AsyncFn(&str) -> F,
    ) {
        for woken in [false, true] {
            for polls in 0.. {
                let item = format!("{what} {woken} {polls}");
                let held = if holder == Holder::None { None } else { Some(take(self.dedupe, &item).await) };
                let call = begin(&item).await;
                let done = self.drop_after(polls, woken, held, holder, call).await;
                self.points += 1;
                let end = match end {
                    End::DuplicateIfPolled if polls > 0 => End::Duplicate,
                    End::DuplicateIfPolled => End::Free,
                    end => end,
                };
                self.ends(&item, end).await;
                if done {
                    break;
                }
            }
        }
    }

    async fn drop_after<F: Future>(
        &self,
        polls: usize,
        woken: bool,
        mut held: Option<Claim>,
        holder: Holder,
        call: F,
    ) -> bool {
        let settle = async |held: Option<Claim>| match held {
            Some(held) if holder == Holder::Confirms => assert!(held.confirm().await.unwrap()),
            held => drop(held),
        };
        let mut call = task::spawn(call);
        for poll in 0..polls {
            if call.poll().is_ready() {
                settle(held).await;
                return true;
            }
            if poll + 1 < polls || woken {
                eventually("it to be woken", SOON, async || {
                    if !call.is_woken() && self.waits() {
                        settle(held.take()).await;
                    }
                    call.is_woken()
                })
                .await;
            }
        }
        drop(call);
        settle(held).await;
        false
    }

    /// Whether a call waits; in process that is so once it was polled.
    fn waits(&self) -> bool {
        self.server.is_none_or(|server| left(server).iter().any(|key| key.ends_with(":waiters")))
    }

    async fn ends(&self, item: &str, end: End) {
        eventually(&format!("{item:?} to be {end:?}"), SOON, async || {
            match self.dedupe.try_claim(item).await {
                Ok(Claimed::New(claim)) => {
                    assert!(claim.release().await.unwrap());
                    end == End::Free
                }
                Ok(Claimed::Duplicate) => {
                    assert_eq!(end, End::Duplicate, "{item}");
                    true
                }
                Err(error) => {
                    assert!(error.is_refused(), "{error}");
                    false
                }
            }
        })
        .await;
        if let Some(server) = self.server {
            eventually("nothing to be left", SOON, async || left(server).is_empty()).await;
        }
    }
}
