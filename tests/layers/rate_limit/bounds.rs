//! What is `Send`, `Sync` and `Clone`, and what need not be.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt::Debug;
use std::future::{Ready, ready};
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use static_assertions::{assert_impl_all, assert_not_impl_any};
use tower::{Layer as _, Service, ServiceExt as _};
use tower_distributed::token_bucket::{BucketState, Decision, Reservation};
use tower_distributed::{
    Error, Key, Layered, Quota, Quotas, RateLimitLayer, Refusal, Store, StoreBuilder, StoreFailure,
    TokenBucket,
};

use crate::probe::Probe;
use crate::stores::at_most;

type Limited<S> = Layered<S, RateLimitLayer<String, String>>;
type Future<S, Req> =
    <Layered<S, RateLimitLayer<Req, <S as Service<Req>>::Response>> as Service<Req>>::Future;

assert_impl_all!(Store: Clone, Send, Sync, Unpin, Debug);
assert_impl_all!(StoreBuilder: Clone, Send, Sync, Debug);
assert_impl_all!(TokenBucket: Clone, Send, Sync, Unpin, Debug);
assert_impl_all!(Reservation: Send, Sync, Unpin, Debug);
assert_impl_all!(Decision: Clone, Send, Sync, Debug);
assert_impl_all!(BucketState: Clone, Send, Sync, Debug);
assert_impl_all!(Key: Clone, Send, Sync, Debug);
assert_impl_all!(Quota: Clone, Send, Sync, Debug);
assert_impl_all!(Quotas: Clone, Send, Sync, Debug);
assert_impl_all!(StoreFailure: Copy, Send, Sync, Debug);
assert_impl_all!(Error: Clone, Send, Sync, std::error::Error);
assert_impl_all!(Refusal: Clone, Send, Sync, std::error::Error);

assert_impl_all!(RateLimitLayer<String, String>: Clone, Send, Sync, Unpin, Debug);
assert_impl_all!(Limited<Probe>: Clone, Send, Sync, Unpin, Debug, Service<String>);
assert_impl_all!(Future<Probe, String>: Send, Unpin, Debug, std::future::Future);
// No more is asked of a service than it gives.
assert_impl_all!(Limited<LocalService>: Clone);
assert_not_impl_any!(Limited<LocalService>: Send, Sync);
assert_not_impl_any!(Future<LocalService, String>: Send, Unpin);

/// Stays on its thread, and its futures stay where they are pinned.
#[derive(Clone)]
struct LocalService(Rc<Cell<usize>>);

struct PinnedFuture(Rc<Cell<usize>>, PhantomPinned);

impl std::future::Future for PinnedFuture {
    type Output = Result<usize, Infallible>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.set(self.0.get() + 1);
        Poll::Ready(Ok(self.0.get()))
    }
}

impl Service<String> for LocalService {
    type Response = usize;
    type Error = Infallible;
    type Future = PinnedFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: String) -> PinnedFuture {
        PinnedFuture(Rc::clone(&self.0), PhantomPinned)
    }
}

/// Extractors in all their forms, none of which needs a type to be named.
#[allow(clippy::ptr_arg)]
#[test]
fn keys_are_made_of_many_things() {
    fn borrowed(request: &String) -> &str {
        request
    }
    fn optional(request: &String) -> Option<&[u8]> {
        request.strip_prefix('k').map(str::as_bytes)
    }
    let (bucket, salt) = (|| at_most(2, &Store::in_memory()), String::from("salt"));
    let _: [RateLimitLayer<String, String>; 7] = [
        RateLimitLayer::new(bucket(), borrowed),
        RateLimitLayer::new(bucket(), optional),
        RateLimitLayer::new(bucket(), |request: &String| request.len()),
        RateLimitLayer::new(bucket(), move |request: &String| {
            format!("{salt}/{request}")
        }),
        RateLimitLayer::new(bucket(), |request: &String| Key::from(request)),
        RateLimitLayer::new(bucket(), |_: &String| std::net::Ipv4Addr::LOCALHOST),
        RateLimitLayer::new(bucket(), |request: &String| request.clone().into_bytes()),
    ];
}

#[tokio::test]
async fn a_service_may_stay_on_its_thread() {
    let layer = RateLimitLayer::new(at_most(2, &Store::in_memory()), |name: &String| name.len());
    let service = layer.layer(LocalService(Rc::default()));
    assert_eq!(service.clone().oneshot("ann".into()).await.unwrap(), 1);
    assert_eq!(service.clone().oneshot("bob".into()).await.unwrap(), 2);
    assert!(service.oneshot("eve".into()).await.is_err());
}

/// Lives no longer than what it borrows, and so do its requests and responses.
#[derive(Clone)]
struct Borrowing<'a>(&'a str);

impl<'a> Service<&'a str> for Borrowing<'a> {
    type Response = (&'a str, &'a str);
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: &'a str) -> Self::Future {
        ready(Ok((self.0, request)))
    }
}

#[tokio::test]
async fn services_and_requests_may_borrow() {
    let (greeting, name) = (String::from("hello"), String::from("ann"));
    let layer = RateLimitLayer::new(at_most(1, &Store::in_memory()), |name: &&str| name.len())
        .reject_with(|_: Refusal| ("bye", "ann"));
    let service = layer.layer(Borrowing(&greeting));
    assert_eq!(
        service.clone().oneshot(&name).await.unwrap(),
        ("hello", "ann")
    );
    assert_eq!(service.oneshot(&name).await.unwrap(), ("bye", "ann"));
}
