//! What a refused caller gets: a response, or what a `Reject` makes of it.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::{Refusal, RefusalKind, Reject};

use crate::families::{Other, by_name, on_each_layer};
use crate::probe::Probe;
use crate::stores::{Stores, on_each_store};

on_each_store!(a_response, whatever_a_reject_makes_of_it);

/// Not a `std::error::Error`, and still good enough for responses.
#[derive(Debug, PartialEq)]
struct Broken(u8);

/// Errors of the service keep their type, and one that cannot fail still cannot.
async fn a_response(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    on_each_layer!(stores, by_name, |layer| {
        let layer = layer.reject_with(|_: Refusal| "come back later");
        let mut service = layer.layer(Probe::default());
        let mut call = async |request: &'static str| -> Result<&'static str, Infallible> {
            service.ready().await?.call(request).await
        };
        let (Ok(free), Ok(held)) = (call("bob").await, call("ann").await);
        assert_eq!([free, held], ["bob", "come back later"]);
        let service = layer.layer(service_fn(async |_: &'static str| {
            Err::<&'static str, _>(Broken(7))
        }));
        assert_eq!(service.clone().oneshot("eve").await, Err(Broken(7)));
        assert_eq!(service.oneshot("ann").await, Ok("come back later"));
    });
    other.leaves().await;
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

/// A response to those who waited too long, an error to the others.
#[derive(Clone)]
struct AsAppError;

impl<E: ToString> Reject<&'static str, E> for AsAppError {
    type Error = AppError;

    fn reject(&self, refusal: Refusal) -> Result<&'static str, AppError> {
        match refusal.kind() {
            RefusalKind::WaitedTooLong => Ok("it took too long"),
            kind => Err(AppError::Refused(kind)),
        }
    }

    fn inner_error(error: E) -> AppError {
        AppError::Inner(error.to_string())
    }
}

async fn whatever_a_reject_makes_of_it(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    on_each_layer!(stores, by_name, |layer| {
        let layer = layer.reject_with(AsAppError);
        let failing = service_fn(async |_: &'static str| Err::<&'static str, _>("out of order"));
        let service = layer.clone().layer(failing);
        let error = service.clone().oneshot("bob").await.unwrap_err();
        assert!(
            matches!(&error, AppError::Inner(text) if text == "out of order"),
            "{error}"
        );
        let error = service.oneshot("ann").await.unwrap_err();
        let refused = |kind| matches!(kind, RefusalKind::NoPermit | RefusalKind::Locked);
        assert!(
            matches!(error, AppError::Refused(kind) if refused(kind)),
            "{error}"
        );
        let service = layer
            .max_wait(Duration::from_millis(20))
            .layer(Probe::default());
        assert_eq!(service.oneshot("ann").await.unwrap(), "it took too long");
    });
    other.leaves().await;
}
