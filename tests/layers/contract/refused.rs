//! What a refused caller gets: an error, a response, or what a `Reject` makes of it.

use std::convert::Infallible;
use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use tower::{BoxError, Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::{Refusal, RefusalKind, Reject};

use super::subjects::{Refusing as _, on_each_subject};
use crate::probe::Probe;
use crate::stores::{Stores, on_each_store};

on_each_store!(a_boxed_refusal_by_default, a_response, whatever_a_reject_makes_of_it,);

async fn a_boxed_refusal_by_default(stores: Stores) {
    let mut texts = Vec::new();
    on_each_subject!(stores, |layer, Kind| {
        let occupied = Kind::occupy(&stores, "ann").await;
        let error: BoxError = layer.layer(Probe::default()).oneshot("ann:1".to_owned()).await.unwrap_err();
        let refusal = error.downcast_ref::<Refusal>().unwrap();
        assert_eq!(refusal.kind(), Kind::REFUSAL);
        assert!(refusal.get_ref().is_refused() && refusal.source().is_none());
        if refusal.kind() == RefusalKind::RateLimited {
            let decision = refusal.decision().unwrap();
            let told = (decision.is_admitted(), decision.state.tightest().limit, decision.remaining());
            assert_eq!(told, (false, 1, 0));
            assert_eq!(decision.key, Some("ann".into()));
            assert!(refusal.retry_after().is_some_and(|after| !after.is_zero()));
        } else {
            assert!(refusal.decision().is_none());
            // Of permits nothing is known before one was released.
            let estimate = (refusal.kind() != RefusalKind::NoPermit).then_some(Duration::from_secs(5));
            assert_eq!(refusal.retry_after(), estimate);
        }
        texts.push(refusal.to_string());
        Kind::free(occupied).await;
    });
    let [rate, others @ ..] = &texts[..] else { panic!("{texts:?}") };
    assert!(rate.starts_with("rate limit exceeded, retry in "), "{rate}");
    assert_eq!(others, ["no permit is free", "the lock is held", "the lock is held"]);
}

/// Not a `std::error::Error`, and still good enough for responses.
#[derive(Debug, PartialEq)]
struct Broken(u8);

/// Errors of the service keep their type, and one that cannot fail still cannot.
async fn a_response(stores: Stores) {
    on_each_subject!(stores, |layer, Kind| {
        let occupied = Kind::occupy(&stores, "ann").await;
        let layer = layer.reject_with(|_: Refusal| "come back later".to_owned());
        let mut service = layer.layer(Probe::default());
        let mut call = async |request: &str| -> Result<String, Infallible> {
            service.ready().await?.call(request.to_owned()).await
        };
        let (Ok(free), Ok(held)) = (call("bob:1").await, call("ann:1").await);
        assert_eq!([free, held], ["bob:1", "come back later"]);
        let service = layer.layer(service_fn(async |_: String| Err::<String, _>(Broken(7))));
        assert_eq!(service.clone().oneshot("eve:1".into()).await, Err(Broken(7)));
        assert_eq!(service.oneshot("ann:1".into()).await, Ok("come back later".into()));
        Kind::free(occupied).await;
    });
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

impl<E: ToString> Reject<String, E> for AsAppError {
    type Error = AppError;

    fn reject(&self, refusal: Refusal) -> Result<String, AppError> {
        match refusal.kind() {
            RefusalKind::WaitedTooLong => Ok("it took too long".into()),
            kind => Err(AppError::Refused(kind)),
        }
    }

    fn inner_error(error: E) -> AppError {
        AppError::Inner(error.to_string())
    }
}

async fn whatever_a_reject_makes_of_it(stores: Stores) {
    on_each_subject!(stores, |layer, Kind| {
        let occupied = Kind::occupy(&stores, "ann").await;
        let layer = layer.reject_with(AsAppError);
        let failing = service_fn(async |_: String| Err::<String, _>("out of order"));
        let service = layer.clone().layer(failing);
        let error = service.clone().oneshot("bob:1".into()).await.unwrap_err();
        assert!(matches!(&error, AppError::Inner(text) if text == "out of order"), "{error}");
        let error = service.oneshot("ann:1".into()).await.unwrap_err();
        assert!(matches!(error, AppError::Refused(kind) if kind == Kind::REFUSAL), "{error}");
        if Kind::REFUSAL != RefusalKind::RateLimited {
            let service = layer.max_wait(Duration::from_millis(20)).layer(Probe::default());
            assert_eq!(service.oneshot("ann:1".into()).await.unwrap(), "it took too long");
        }
        Kind::free(occupied).await;
    });
}
