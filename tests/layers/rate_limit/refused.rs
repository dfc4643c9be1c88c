//! What a refused caller gets: an error, a response, or what a `Reject` makes of it.

use std::convert::Infallible;
use std::error::Error as _;
use std::fmt;

use tower::{BoxError, Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::{RateLimitLayer, Refusal, RefusalKind, Reject};

use crate::probe::Probe;
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(
    a_boxed_refusal_by_default,
    a_response_and_the_service_still_cannot_fail,
    errors_of_the_service_keep_their_type,
    whatever_a_reject_makes_of_it,
);

fn everything(_: &&'static str) -> &'static str {
    "everything"
}

async fn a_boxed_refusal_by_default(stores: Stores) {
    let mut service = RateLimitLayer::new(at_most(1, &stores.open()), everything).layer(Probe::default());
    service.ready().await.unwrap().call("first").await.unwrap();
    let error: BoxError = service.ready().await.unwrap().call("second").await.unwrap_err();
    let refusal = error.downcast_ref::<Refusal>().unwrap();
    assert_eq!(refusal.kind(), RefusalKind::RateLimited);
    assert!(refusal.retry_after().is_some_and(|after| !after.is_zero()));
    let decision = refusal.decision().unwrap();
    assert_eq!(
        (decision.is_admitted(), decision.state.tightest().limit, decision.remaining()),
        (false, 1, 0)
    );
    assert!(refusal.get_ref().is_refused());
    assert!(refusal.source().is_none());
    assert!(refusal.to_string().starts_with("rate limit exceeded, retry in "), "{refusal}");
}

async fn a_response_and_the_service_still_cannot_fail(stores: Stores) {
    let layer = RateLimitLayer::new(at_most(1, &stores.open()), everything)
        .reject_with(|_: Refusal| "come back later");
    let mut service = layer.layer(Probe::default());
    let mut call =
        async || -> Result<&'static str, Infallible> { service.ready().await?.call("hello").await };
    let (Ok(first), Ok(second)) = (call().await, call().await);
    assert_eq!([first, second], ["hello", "come back later"]);
}

/// Not a `std::error::Error`, and still good enough for responses.
#[derive(Debug, PartialEq)]
struct Broken(u8);

async fn errors_of_the_service_keep_their_type(stores: Stores) {
    let layer = RateLimitLayer::new(at_most(1, &stores.open()), everything)
        .reject_with(|_: Refusal| "come back later");
    let mut service = layer.layer(service_fn(async |_| Err(Broken(7))));
    assert_eq!(service.ready().await.unwrap().call("first").await, Err(Broken(7)));
    assert_eq!(service.ready().await.unwrap().call("second").await, Ok("come back later"));
}

/// An application's own error, which has a place for refusals.
#[derive(Debug)]
enum AppError {
    Refused(RefusalKind),
    Inner(String),
}

impl fmt::Display for AppError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for AppError {}

#[derive(Clone)]
struct AsAppError;

impl<Res, E: ToString> Reject<Res, E> for AsAppError {
    type Error = AppError;

    fn reject(&self, refusal: Refusal) -> Result<Res, AppError> {
        Err(AppError::Refused(refusal.kind()))
    }

    fn inner_error(&self, error: E) -> AppError {
        AppError::Inner(error.to_string())
    }
}

async fn whatever_a_reject_makes_of_it(stores: Stores) {
    let layer = RateLimitLayer::new(at_most(1, &stores.open()), everything).reject_with(AsAppError);
    let failing = service_fn(async |_| Err::<(), _>("out of order"));
    let mut service = layer.layer(failing);
    let error = service.ready().await.unwrap().call("first").await.unwrap_err();
    assert!(matches!(&error, AppError::Inner(text) if text == "out of order"), "{error}");
    let error = service.ready().await.unwrap().call("second").await.unwrap_err();
    assert!(matches!(error, AppError::Refused(RefusalKind::RateLimited)), "{error}");
}
